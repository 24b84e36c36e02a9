"""Logs of many jobs, one job at a time: from a file, the journals of a machine, or the stream.

A file and the stream hold the jobs' records mixed. A first pass notes where those of each job
stand (eight bytes a record), a second one reads job after job.
"""

from __future__ import annotations

import contextlib
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from drainfsm.core.codec import decode
from drainfsm.core.foreign import UNREADABLE
from drainfsm.core.records import Record
from drainfsm.errors import ConfigError, RecordUnreadableError
from drainfsm.log.frames import MAGIC as JOURNAL_MAGIC
from drainfsm.log.journal import job_names
from drainfsm.views.history import (
    CONNECT_S,
    History,
    Unreadable,
    by_attempt,
    open_log,
    read_file,
    read_journals,
)

if TYPE_CHECKING:
    from drainfsm.log.server import NatsServer


class _Owner(msgspec.Struct):
    job_id: str


_owner = msgspec.json.Decoder(_Owner)


def jobs_of_state_dir(state_dir: Path) -> Iterator[History]:
    """Every job that has journals there."""
    for job_id in job_names(state_dir):
        yield read_journals(state_dir, job_id=job_id)


def jobs_of_file(path: Path, *, each: Callable[[bytes], Record] = decode) -> Iterator[History]:
    """``each``: how a record is read; by ``decode_as_stored`` for who passes them on.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        with open_log(path) as file:
            if file.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC:
                yield read_file(path)
                return
            file.seek(0)
            yield from _jobs(file, str(path), each)
    except OSError as error:
        raise ConfigError(f"--file {path}: {error.strerror}") from error


def jobs_of_stream(
    server: NatsServer | str, *, each: Callable[[bytes], Record] = decode
) -> Iterator[History]:
    """By way of a file that is gone afterwards; ``each``: as above.

    Raises:
        BrokerError: the server cannot be used.
    """
    import asyncio

    with tempfile.TemporaryFile() as file:
        forged = asyncio.run(_spool(server, file))
        if forged.summary:
            yield History(logs=(), damage=forged.summary)
        file.seek(0)
        yield from _jobs(file, "the stream", each)


async def _spool(server: NatsServer | str, file: BinaryIO) -> Unreadable:
    """Returns what says that it is of a job whose agents did not write it."""
    from drainfsm.log.jetstream import connect
    from drainfsm.log.stream import SUBJECTS

    forged = Unreadable()
    connection = await connect(server, timeout_s=CONNECT_S)
    try:
        async for message in connection.messages(SUBJECTS):
            with contextlib.suppress(*UNREADABLE):  # whoever reads the file tells
                if (job_id := _owner.decode(message.data).job_id) != message.job_id:
                    told = f"it says that it is of job {job_id!r}"
                    forged.add(f"message {message.sequence} of the stream: {told}")
                    continue
            file.write(message.data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
    finally:
        await connection.close()
    return forged


def _jobs(file: BinaryIO, where: str, each: Callable[[bytes], Record]) -> Iterator[History]:
    places: dict[str, array[int]] = {}
    unreadable = Unreadable()
    offset = 0
    for number, line in enumerate(file, start=1):
        try:
            job_id = _owner.decode(line).job_id
        except UNREADABLE as error:
            if line.strip():
                unreadable.add(f"{where}, line {number}: {error}")
        else:
            places.setdefault(job_id, array("q")).append(offset)
        offset += len(line)
    if unreadable.summary:
        yield History(logs=(), damage=unreadable.summary)
    for job_id in sorted(places):
        yield _job(file, places.pop(job_id), where, each)


def _job(
    file: BinaryIO, places: array[int], where: str, each: Callable[[bytes], Record]
) -> History:
    unreadable = Unreadable()
    records: list[Record] = []
    for offset in places:
        file.seek(offset)
        try:
            records.append(each(file.readline()))
        except RecordUnreadableError as error:
            unreadable.add(f"{where}, byte {offset}: {error}")
    return History(logs=by_attempt(records), damage=unreadable.summary)
