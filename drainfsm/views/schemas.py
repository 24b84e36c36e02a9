"""JSON Schema of what is written, and an AsyncAPI document of the stream: for everybody else.

Taken from the types themselves; the texts are those beside the fields in the code.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.events import KINDS, Event
from drainfsm.core.manifest import FORMAT_VERSION, Claim, Commit, Manifest
from drainfsm.core.records import SCHEMA_VERSION, Record
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.requirement import REQUIREMENT_VERSION, Requirement
from drainfsm.log import stream

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


class _RecordOnWire(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log: all events of one decision, with the circumstances of writing it.

    A reader keeps what it does not know: fields are added, and kinds of events, without a new
    version.
    """

    v: int
    """Schema version. A reader refuses a higher one than it knows."""

    id: str
    job_id: str
    epoch: int
    follows: int
    at_unix_ms: int
    events: tuple[Event, ...]
    before: str | UnsetType = UNSET
    signed: str | UnsetType = UNSET


def record_schema() -> Schema:
    """Of a record as it is in the stream, in a journal frame and in an exported line."""
    schema = _schema(_RecordOnWire, title="Record", version=SCHEMA_VERSION)
    record = schema["$defs"].pop(_RecordOnWire.__name__)
    for name, text in _field_texts(Record).items():
        record["properties"][name].setdefault("description", text)
    return schema | {"title": "Record"} | {k: v for k, v in record.items() if k != "title"}


def event_schemas() -> dict[str, Schema]:
    """By kind, each complete in itself."""
    return {
        kind: _schema(type_, title=type_.__name__, version=SCHEMA_VERSION)
        for kind, type_ in KINDS.items()
    }


def object_schemas() -> dict[str, Schema]:
    """Of the objects in the checkpoint store, and of what is asked of a replacement."""
    types: dict[str, Any] = {
        "manifest": Manifest,
        "commit": Commit,
        "claim": Claim,
        "requeue_record": RequeueRecord,
    }
    stored = {
        name: _schema(type_, title=type_.__name__, version=FORMAT_VERSION)
        for name, type_ in types.items()
    }
    requirement = _schema(Requirement, title="Requirement", version=REQUIREMENT_VERSION)
    return stored | {"requirement": requirement}


def _schema(type_: Any, *, title: str, version: int) -> Schema:
    """The schema with its definitions inside; no definition is left that nothing refers to."""
    (reference,), definitions = msgspec.json.schema_components(
        (type_,), ref_template="#/$defs/{name}"
    )
    for name, definition in definitions.items():
        _describe(name, definition)
        if "enum" in definition:  # a newer version may know more words
            definition |= {"type": "string", "x-extensible-enum": definition.pop("enum")}
    head: Schema = {"$schema": DRAFT, "title": title, "x-version": version}
    if type_ is _RecordOnWire:
        return head | {"$defs": definitions}
    own: Schema = definitions.pop(reference["$ref"].rsplit("/", 1)[-1])
    return head | own | ({"$defs": definitions} if definitions else {})


def _describe(name: str, definition: Schema) -> None:
    type_ = _types().get(name)
    if type_ is None:
        return
    for field, text in _field_texts(type_).items():
        if field in definition.get("properties", {}):
            definition["properties"][field].setdefault("description", text)


@functools.cache
def _types() -> dict[str, type]:
    """Every struct of the core, by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("drainfsm.core.")]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }


@functools.cache
def _field_texts(type_: type) -> dict[str, str]:
    """The string below each field in the source of the class and of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(type_.__mro__):
        if base.__module__.startswith("drainfsm."):
            texts |= dict(_texts_in(base))
    return texts


def _texts_in(type_: type) -> Iterator[tuple[str, str]]:
    (node,) = ast.parse(inspect.getsource(type_)).body
    if not isinstance(node, ast.ClassDef):
        raise AssertionError(f"the source of {type_} is no class")
    for field, below in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(below, ast.Expr):
            continue
        if isinstance(field.target, ast.Name):
            text = ast.literal_eval(below.value)
            yield field.target.id, " ".join(str(text).split())


# --- AsyncAPI -----------------------------------------------------------------------------------


ABOUT = (
    "Every attempt of every job writes one subject of one JetStream stream. A message is a record: "
    "all events of one decision. Readers replay, follow, and count a record only where `follows` "
    "is the number of records that counted before it, and once per `id`."
)


def asyncapi() -> Schema:
    """The stream as an AsyncAPI 3 document."""
    record = record_schema()
    definitions = record.pop("$defs")
    schemas = {"Record": record} | definitions
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "drainfsm event log",
            "version": f"{SCHEMA_VERSION}.0.0",
            "description": ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "nats": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "What `drainfsm run --nats` names, or the embedded server.",
            }
        },
        "channels": {"attempt": _channel()},
        "operations": {
            "ship": _operation("send", "The shipper: one record each, in the journal's order."),
            "follow": _operation("receive", "Replay, dashboards, reports: read only."),
        },
        "components": {
            "messages": {"record": _message()},
            "schemas": {name: _moved(schema) for name, schema in schemas.items()},
        },
    }


def _operation(action: str, summary: str) -> Schema:
    return {"action": action, "channel": {"$ref": "#/channels/attempt"}, "summary": summary}


def _moved(schema: Any) -> Any:
    """The schema with its references into the document's components."""
    if isinstance(schema, dict):
        return {
            key: value.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref"
            else {kind: _moved_text(to) for kind, to in value.items()}
            if key == "mapping"
            else _moved(value)
            for key, value in schema.items()
            if key != "$schema"
        }
    if isinstance(schema, list):
        return [_moved(one) for one in schema]
    return schema


def _moved_text(reference: str) -> str:
    return reference.replace("#/$defs/", "#/components/schemas/")


def _channel() -> Schema:
    return {
        "address": "drainfsm.v1.{job_id}.{epoch}",
        "description": "The log of one attempt, written by one coordinator.",
        "parameters": {
            "job_id": {"description": "Name of the job: letters, digits, `_` and `-`."},
            "epoch": {"description": "Number of the attempt: 1, 2, 3 ..."},
        },
        "messages": {"record": {"$ref": "#/components/messages/record"}},
        "bindings": {"nats": {"bindingVersion": "0.1.0"}},
        "x-jetstream": {"stream": stream.STREAM, "config": stream.REQUIRED},
    }


def _message() -> Schema:
    return {
        "name": "record",
        "title": "A record",
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "properties": {
                "Nats-Msg-Id": {"type": "string", "description": "The record's `id`."},
                "Nats-Expected-Last-Subject-Sequence": {
                    "type": "string",
                    "description": "Stream sequence of the subject's last message; 0: it is empty.",
                },
            },
            "required": ["Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"],
        },
        "payload": {"$ref": "#/components/schemas/Record"},
    }
