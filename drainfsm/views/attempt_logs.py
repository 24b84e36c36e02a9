"""A log's attempts, one at a time, so that as much of it is held as the longest of them has.

A file and the stream hold the attempts mixed: a first pass notes where the records of each stand
(eight bytes a record), and each is read when it is its turn.
"""

from __future__ import annotations

import contextlib
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from drainfsm.core.codec import decode
from drainfsm.core.records import Record, subject_of, subjects_of
from drainfsm.errors import ConfigError, RecordUnreadableError
from drainfsm.log.frames import MAGIC as JOURNAL_MAGIC
from drainfsm.log.journal import journals
from drainfsm.views.history import (
    CONNECT_S,
    History,
    Unreadable,
    open_log,
    read_file,
    read_one_journal,
)
from drainfsm.views.replay import AttemptLog, AttemptReplay, replay_in_turn

if TYPE_CHECKING:
    from drainfsm.log.server import NatsServer

Name = tuple[str, int]
"""Job and epoch."""

Read = Callable[[], tuple[Sequence[Record], str]]
"""The records of one attempt, and its damage; empty: none."""


class Attempts:
    def __init__(
        self, found: Mapping[Name, Read], *, damage: str = "", others: Sequence[int] = ()
    ) -> None:
        """``others``: epochs that are there, too, and were not to be read."""
        self._read = dict(sorted(found.items()))
        self._damages = [damage] if damage else []
        self._others = others

    @property
    def damage(self) -> str:
        """What could not be read, and why, of what was read by now."""
        return "; ".join(self._damages)

    @property
    def empty(self) -> bool:
        return not (self._read or self._damages or self._others)

    def replays(self, epoch: int | None = None) -> Iterator[AttemptReplay]:
        """Every attempt, or this one of each job.

        Raises:
            ConfigError: there is no such attempt.
        """
        names = list(self._read)
        if epoch is not None:
            there = sorted({name[1] for name in names} | {*self._others})
            if epoch not in {name[1] for name in names}:
                epochs = ", ".join(map(str, there))
                raise ConfigError(f"--epoch {epoch}: no such attempt; there are {epochs}")
            behind = [
                after for name, after in pairwise(names) if name[1] == epoch and name[0] == after[0]
            ]  # may know that it was lost
            names = sorted({name for name in names if name[1] == epoch} | {*behind})
        found = replay_in_turn(map(self._log, names))
        return (replay for replay in found if epoch in (None, replay.final.epoch))

    def _log(self, name: Name) -> AttemptLog:
        records, damage = self._read[name]()
        self._damages += [damage] if damage else []
        return AttemptLog(job_id=name[0], epoch=name[1], records=tuple(records))


def attempts_in(history: History) -> Attempts:
    """Of what is held as a whole."""
    logs = {(log.job_id, log.epoch): partial(_same, log.records) for log in history.logs}
    return Attempts(logs, damage=history.damage)


def _same(records: Sequence[Record]) -> tuple[Sequence[Record], str]:
    return records, ""


def attempts_of_journals(state_dir: Path, *, job_id: str) -> Attempts:
    """Of the journals that this machine holds."""
    paths = journals(state_dir, job_id)
    if not any(any(read_one_journal(path)) for path in paths.values()):
        return Attempts({})
    return Attempts({(job_id, epoch): partial(read_one_journal, p) for epoch, p in paths.items()})


@contextlib.contextmanager
def attempts_of_file(path: Path, *, job_id: str | None) -> Iterator[Attempts]:
    """Of an exported file, less what is not a record, or of a journal up to its damage.

    Raises:
        ConfigError: there is no such file.
    """
    with contextlib.ExitStack() as files:
        try:
            found = _attempts_in(files.enter_context(open_log(path)), path, job_id)
        except OSError as error:
            raise ConfigError(f"--file {path}: {error.strerror}") from error
        yield found  # what goes wrong there is not the file's


def _attempts_in(file: BinaryIO, path: Path, job_id: str | None) -> Attempts:
    if file.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC:
        return attempts_in(_of_job(read_file(path), job_id))
    places = _Places(file)
    file.seek(0)
    for number, line in enumerate(file, start=1):
        if line.strip():
            places.add(line, where=f"{path}, line {number}", job_id=job_id)
        places.offset += len(line)
    return places.attempts()


@contextlib.contextmanager
def attempts_of_stream(
    server: NatsServer | str, *, job_id: str, epoch: int | None
) -> Iterator[Attempts]:
    """By way of a file that is gone afterwards. Of one ``epoch`` only what belongs to it is read.

    Raises:
        BrokerError: the server cannot be used.
    """
    import asyncio

    with tempfile.TemporaryFile() as file:
        places = _Places(file)
        yield asyncio.run(_spool(server, places, job_id=job_id, epoch=epoch))


async def _spool(
    server: NatsServer | str, places: _Places, *, job_id: str, epoch: int | None
) -> Attempts:
    from drainfsm.log.jetstream import connect
    from drainfsm.log.shipped import message_counts

    subjects = [subjects_of(job_id)]
    if epoch is not None:  # the attempt behind it may know that it was lost
        subjects = [subject_of(job_id=job_id, epoch=one) for one in (epoch, epoch + 1)]
    connection = await connect(server, timeout_s=CONNECT_S)
    try:
        for subject in subjects:
            async for message in connection.messages(subject):
                line = message.data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
                where = f"message {message.sequence} of the stream"
                if places.add(line, where=where, job_id=job_id, strange=True):
                    places.file.write(line)
                    places.offset += len(line)
        if epoch is not None and not places.has(epoch):
            return places.attempts(others=sorted(await message_counts(connection, job_id)))
    finally:
        await connection.close()
    return places.attempts()


class _Places:
    """Where the records of each attempt stand in a file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.offset = 0
        """Of the line that comes next."""

        self._places: dict[Name, array[int]] = {}
        self._unreadable = Unreadable()

    def add(self, line: bytes, *, where: str, job_id: str | None, strange: bool = False) -> bool:
        """Whether it is a record, and of the job. ``strange``: to be told if it is of another."""
        try:
            record = decode(line)
        except RecordUnreadableError as error:
            self._unreadable.add(f"{where}: {error}")
            return False
        if job_id not in (None, record.job_id):
            if strange:
                self._unreadable.add(f"{where}: it says that it is of job {record.job_id!r}")
            return False
        name = (record.job_id, record.epoch)
        self._places.setdefault(name, array("q")).append(self.offset)
        return True

    def has(self, epoch: int) -> bool:
        return any(name[1] == epoch for name in self._places)

    def attempts(self, *, others: Sequence[int] = ()) -> Attempts:
        reads = {name: partial(self._read, places) for name, places in self._places.items()}
        return Attempts(reads, damage=self._unreadable.summary, others=others)

    def _read(self, places: array[int]) -> tuple[Sequence[Record], str]:
        found: list[Record] = []
        for offset in places:
            self.file.seek(offset)
            found.append(decode(self.file.readline()))
        return found, ""


def _of_job(history: History, job_id: str | None) -> History:
    logs = tuple(log for log in history.logs if job_id in (None, log.job_id))
    return History(logs=logs, damage=history.damage)
