"""Bytes to records and back. One JSON object a record, so a log can be read with ``less``.

Forward compatible: unknown fields are ignored, and an event of an unknown kind is kept, byte for
byte, as ``UnknownFact``. A record of a higher schema version is refused. Who passes records on
reads them by ``decode_as_stored``: the chain and the signatures are over the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.chain import line_digest
from drainfsm.core.events import KINDS, Event, UnknownFact
from drainfsm.core.foreign import UNREADABLE, read_json
from drainfsm.core.manifest import FORMAT_VERSION
from drainfsm.core.records import SCHEMA_VERSION, Record
from drainfsm.errors import FormatUnknownError, ManifestMismatchError, RecordUnreadableError

T = TypeVar("T")


class _Loose(msgspec.Struct, frozen=True, kw_only=True):
    v: int = SCHEMA_VERSION
    id: str
    job_id: str
    epoch: int
    follows: int
    at_unix_ms: int
    events: tuple[msgspec.Raw, ...]
    before: str | UnsetType = UNSET
    signed: str | UnsetType = UNSET


class RecordAsStored(Record, frozen=True, kw_only=True, gc=False):
    """A record that this version would write otherwise: another one wrote it, with fields that are
    not known here, or without some that are."""

    line: bytes
    """What ``encode`` gives."""


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    kind: str


_encoder = msgspec.json.Encoder()
_strict = msgspec.json.Decoder(Record)
_loose = msgspec.json.Decoder(_Loose)
_kind = msgspec.json.Decoder(_Kind)
_event: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Event)


def encode(record: Record) -> bytes:
    """One line of JSON, no newline. The same record gives the same bytes every time."""
    if isinstance(record, RecordAsStored):
        return record.line
    fields = {
        "v": record.v,
        "id": record.id,
        "job_id": record.job_id,
        "epoch": record.epoch,
        "follows": record.follows,
        "at_unix_ms": record.at_unix_ms,
        "events": [_raw(event) for event in record.events],
    }
    if record.before is not UNSET:
        fields["before"] = record.before
    if record.signed is not UNSET:
        fields["signed"] = record.signed  # the last field: ``log.signing`` cuts it off
    return _encoder.encode(fields)


def link_behind(records: Sequence[Record]) -> str:
    """``before`` of the record that comes next."""
    return line_digest(encode(records[-1])) if records else ""


def _raw(event: Event | UnknownFact) -> object:
    return event.body if isinstance(event, UnknownFact) else event


def decode(data: bytes | memoryview) -> Record:
    """The record in ``data``.

    Raises:
        RecordUnreadableError: not JSON, a field of the wrong type, or a newer schema version.
    """
    try:
        wire = _strict.decode(data)
    except msgspec.ValidationError:
        return _decode_loosely(data)
    except UNREADABLE as error:
        raise RecordUnreadableError(f"{error}: {bytes(data[:120])!r}") from error
    if wire.v > SCHEMA_VERSION:
        raise _newer(wire.v)
    return wire


def decode_as_stored(data: bytes) -> Record:
    """The same, for who passes it on: ``encode`` gives these bytes again, less a line break behind
    them. It takes more than twice as long.

    Raises:
        RecordUnreadableError: as ``decode``.
    """
    record, line = decode(data), data.rstrip(b"\r\n")
    if encode(record) == line:
        return record
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return RecordAsStored(**fields, line=line)


def _decode_loosely(data: bytes | memoryview) -> Record:
    """The slow path: keeps events of kinds that a newer version added."""
    try:
        loose = _loose.decode(data)
        if loose.v > SCHEMA_VERSION:
            raise _newer(loose.v)
        events: list[Event | UnknownFact] = []
        for raw in loose.events:
            kind = _kind.decode(raw).kind
            if kind in KINDS:
                events.append(_event.decode(raw))
            else:
                body = bytes(raw)
                body.decode()  # the decoder did not look at what it passed over
                events.append(UnknownFact(kind=kind, body=msgspec.Raw(body)))
    except UNREADABLE as error:
        raise RecordUnreadableError(f"{error}: {bytes(data[:120])!r}") from error
    return Record(
        v=loose.v,
        id=loose.id,
        job_id=loose.job_id,
        epoch=loose.epoch,
        follows=loose.follows,
        at_unix_ms=loose.at_unix_ms,
        events=tuple(events),
        before=loose.before,
        signed=loose.signed,
    )


def _newer(version: int) -> RecordUnreadableError:
    return RecordUnreadableError(
        f"record of schema version {version}; this drainfsm reads up to {SCHEMA_VERSION}: update it"
    )


def encode_lines(records: Iterable[Record]) -> bytes:
    return b"".join(encode(record) + b"\n" for record in records)


def decode_lines(data: bytes, *, each: Callable[[bytes], Record] = decode) -> Iterator[Record]:
    """Records of an exported file, one a line; blank lines are skipped. ``each``: ``decode`` or
    ``decode_as_stored``.

    Raises:
        RecordUnreadableError: names the line.
    """
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                yield each(line)
            except RecordUnreadableError as error:
                raise RecordUnreadableError(f"line {number}: {error}") from error


def encode_object(value: msgspec.Struct) -> bytes:
    """Manifest, slot or requeue record as stored: indented JSON, one trailing newline."""
    return msgspec.json.format(_encoder.encode(value), indent=1) + b"\n"


def decode_object(
    data: bytes, type_: type[T], *, what: str, newest_version: int = FORMAT_VERSION
) -> T:
    """A stored object.

    Raises:
        FormatUnknownError: its format version is not known here.
        ManifestMismatchError: garbled.
    """

    def garbled(reason: str) -> ManifestMismatchError:
        return ManifestMismatchError(f"{what} is garbled: {reason}")

    version = read_json(data, _Version, garbled).format_version
    if version > newest_version:
        raise FormatUnknownError(
            f"{what} has format version {version}; this drainfsm reads up to "
            f"{newest_version}: update it"
        )
    return read_json(data, type_, garbled)


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    format_version: int
