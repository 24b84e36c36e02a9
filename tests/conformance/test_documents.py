"""The generated documents are those of the code, and say of real data what is true."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from drainfsm.core.codec import encode, encode_object
from drainfsm.core.events import KINDS
from drainfsm.core.lifecycle import LIFECYCLE
from drainfsm.core.manifest import Claim, Commit, Entry, Manifest
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import Phase
from drainfsm.testing.scenario import Scenario
from drainfsm.views import diagram
from drainfsm.views.schemas import asyncapi, event_schemas

SPECS = Path(__file__).parents[2] / "specs"
GOLDEN = Path(__file__).parents[1] / "replay" / "histories"

OBJECTS: dict[str, msgspec.Struct] = {
    "claim": Claim(job_id="job", epoch=1, attempt_id="a", claimed_unix_ms=1),
    "commit": Commit(
        job_id="job",
        epoch=1,
        attempt_id="a",
        generation_id="e1",
        manifest_digest="sha256:00",
        step=7,
        world_size=2,
        total_bytes=9,
        file_count=1,
        committed_unix_ms=1,
    ),
    "manifest": Manifest(
        job_id="job",
        epoch=1,
        generation_id="e1",
        step=7,
        world_size=2,
        entries=(Entry(name="f", size_bytes=9, checksum="xxh3_128:00", rank=0),),
        created_unix_ms=1,
    ),
    "requeue_record": RequeueRecord(
        job_id="job",
        epoch=1,
        cause=Cause.FINISHED,
        generation_id=None,
        manifest_digest=None,
        step=None,
        world_size=2,
        capacity=Capacity(node_count=1),
        recorded_unix_ms=1,
    ),
}


def _schema(name: str) -> Any:
    return json.loads((SPECS / "schemas" / f"{name}.schema.json").read_text())


def test_no_document_is_stale() -> None:
    done = subprocess.run(
        [sys.executable, str(SPECS / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_recorded_line_is_valid_by_the_schema_of_a_record() -> None:
    validator = jsonschema.Draft202012Validator(_schema("record"))
    paths = sorted(GOLDEN.glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    assert len(lines) > 50
    for line in lines:
        validator.validate(json.loads(line))


def test_the_schema_of_a_record_refuses_what_a_reader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(_schema("record"))
    record = json.loads(encode(Scenario().saving().history[-1]))
    validator.validate(record)
    for spoilt in (
        record | {"epoch": "one"},
        {key: value for key, value in record.items() if key != "follows"},
        record | {"events": [{**record["events"][0], "node": "n"}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(spoilt)


def test_every_event_has_a_schema_of_its_own_that_is_complete() -> None:
    schemas = event_schemas()
    assert schemas.keys() == KINDS.keys()
    for kind, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]["kind"]["enum"] == [kind]
        for reference in _references(schema):
            assert reference.removeprefix("#/$defs/") in schema["$defs"], kind


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_in_the_store_are_valid_by_their_schema(name: str) -> None:
    stored = json.loads(encode_object(OBJECTS[name]))
    jsonschema.Draft202012Validator(_schema(name)).validate(stored)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(_schema(name)).validate(stored | {"epoch": None})


def test_every_reference_of_the_stream_document_leads_somewhere() -> None:
    document = asyncapi()
    references = list(_references(document))
    assert len(references) > 40
    for reference in references:
        here: Any = document
        for part in reference.removeprefix("#/").split("/"):
            here = here[part]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def test_the_diagram_has_every_state_and_every_arrow_of_the_table() -> None:
    drawn = {(arrow.event, arrow.source, arrow.dest) for arrow in diagram.arrows()}
    assert drawn == {
        (step.kind, source.value, step.dest.value)
        for step in LIFECYCLE
        if step.dest is not None
        for source in step.sources
    }
    assert diagram.PLACES.keys() == set(Phase)
    source = diagram.mermaid()
    for event, begin, end in drawn:
        assert f"  {begin} --> {end}: " in source
        assert event in source
