"""What the stream was found to have of a job's earlier journals, noted beside them: the thousandth
attempt need not have it read out again for each.

A note counts only for the same stream, journal and number of messages: the stream deletes nothing,
so one that has lost a record of an attempt has fewer messages of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from drainfsm.core.foreign import UNREADABLE
from drainfsm.core.records import subjects_of
from drainfsm.log.jetstream import Connection
from drainfsm.log.journal import journal_path

NAME = "shipped.json"


class Note(msgspec.Struct, frozen=True, array_like=True):
    message_count: int
    """Of the attempt's subject, others' included."""

    journal_bytes: int


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    stream: str = ""
    """When it was created: another one begins anew."""

    attempts: dict[int, Note] = {}


def read_notes(state_dir: Path, job_id: str) -> Notes:
    """None where there are none, or they cannot be read."""
    try:
        return msgspec.json.decode(_path(state_dir, job_id).read_bytes(), type=Notes)
    except (OSError, *UNREADABLE):
        return Notes()


def write_notes(state_dir: Path, job_id: str, notes: Notes) -> None:
    """If it can be done. Not durable: the stream is asked again then."""
    path = _path(state_dir, job_id)
    new = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        new.write_bytes(msgspec.json.encode(notes))
        new.replace(path)


async def message_counts(connection: Connection, job_id: str) -> dict[int, int]:
    """Of a job's attempts: of the first 100,000, which a server tells at once.

    Raises:
        BrokerError: no answer.
    """
    reply = await connection.stream_info({"subjects_filter": subjects_of(job_id)})
    subjects = reply.state.subjects or {}
    epochs = {subject.rpartition(".")[2]: count for subject, count in subjects.items()}
    return {int(epoch): count for epoch, count in epochs.items() if epoch.isdecimal()}


def still_true(
    notes: Notes, *, stream: str, counts: Mapping[int, int], paths: Mapping[int, Path]
) -> set[int]:
    """Attempts whose journals need not be read. ``counts``: messages of each attempt now."""
    if not stream or notes.stream != stream:
        return set()
    return {
        epoch
        for epoch, path in paths.items()
        if (note := notes.attempts.get(epoch)) is not None
        and note.message_count == counts.get(epoch, 0)
        and note.journal_bytes == _size(path)
    }


def note_of(path: Path, *, message_count: int) -> Note:
    return Note(message_count, _size(path))


def _size(path: Path) -> int:
    """-1: it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _path(state_dir: Path, job_id: str) -> Path:
    return journal_path(state_dir, job_id=job_id, epoch=0).parent / NAME
