"""The journal's bytes: a header, then frames of ``<u32 length, u32 crc32>`` and JSON lines.

One frame is one append: the records of one call stand in it together, a line each. It is synced
before the next one is begun, so after a crash only the last frame can be broken (a torn tail). A
broken frame with a whole one behind it was damaged later.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.errors import JournalCorruptError

MAGIC = b"drainfsm journal\n"
FORMAT_VERSION = 1
PREFIX = struct.Struct("<II")
FRAME_BYTES_MAX = 1 << 26
"""A length above this is garbage. The largest real record is far below a megabyte."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First frame of the file."""

    format_version: int = FORMAT_VERSION
    job_id: str
    epoch: int


def frame(payload: bytes) -> bytes:
    assert 0 < len(payload) <= FRAME_BYTES_MAX, len(payload)
    return PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def header_bytes(*, job_id: str, epoch: int) -> bytes:
    return MAGIC + frame(msgspec.json.encode(Header(job_id=job_id, epoch=epoch)))


def read_header(data: bytes) -> tuple[Header | None, int]:
    """The header and where it ends; (None, 0) if a crash came while the file was created.

    Raises:
        JournalCorruptError: not a journal, or one of a newer format.
    """
    if not data.strip(b"\0"):
        return None, 0
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise JournalCorruptError(f"not a journal: it begins with {data[: len(MAGIC)]!r}")
    payload = _payload(data, len(MAGIC))
    if payload is None:
        if any_frame(data, len(MAGIC)) is not None:
            raise JournalCorruptError("the header fails its checksum, with frames behind it")
        return None, 0
    header = read_json(
        payload, Header, lambda why: JournalCorruptError(f"the header is garbled: {why}")
    )
    if header.format_version > FORMAT_VERSION:
        raise JournalCorruptError(
            f"journal format {header.format_version}; this drainfsm reads up to {FORMAT_VERSION}: "
            "update it"
        )
    return header, len(MAGIC) + PREFIX.size + len(payload)


def payloads(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Whole frames as (offset of the end, payload), up to the tail.

    Raises:
        JournalCorruptError: a broken frame has a whole one behind it.
    """
    offset, size_bytes = start, len(data)
    while (begin := offset + PREFIX.size) <= size_bytes:  # ``_payload``, without its calls
        length, checksum = PREFIX.unpack_from(data, offset)
        end = begin + length
        payload = data[begin:end]
        if not 0 < length <= FRAME_BYTES_MAX or end > size_bytes or zlib.crc32(payload) != checksum:
            break
        offset = end
        yield offset, payload
    found = any_frame(data, offset + 1)
    if found is not None:
        raise JournalCorruptError(
            f"the frame at byte {offset} fails its checksum, but a whole one stands at byte "
            f"{found}: the file was changed after it was written"
        )


def _payload(data: bytes, offset: int) -> bytes | None:
    begin = offset + PREFIX.size
    if begin > len(data):
        return None
    length, checksum = PREFIX.unpack_from(data, offset)
    end = begin + length
    if not 0 < length <= FRAME_BYTES_MAX or end > len(data):
        return None
    payload = data[begin:end]
    return payload if zlib.crc32(payload) == checksum else None


def any_frame(data: bytes, start: int) -> int | None:
    """Offset of the first whole frame from ``start`` on, whatever stands before it.

    A payload is JSON: it begins with ``{`` and ends with ``}``, which rules nearly all places out
    before a checksum is computed.
    """
    brace = data.find(b"{", start + PREFIX.size)
    while brace != -1:
        offset = brace - PREFIX.size
        end = brace + PREFIX.unpack_from(data, offset)[0]
        if end <= len(data) and data[end - 1] == 0x7D and _payload(data, offset) is not None:
            return offset
        brace = data.find(b"{", brace + 1)
    return None
