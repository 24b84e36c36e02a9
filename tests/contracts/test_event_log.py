"""What both logs promise: the journal and the stream. Another one joins in ``LOGS``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from drainfsm.core.events import UnknownFact
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import StaleWriterError
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import Connection, connect
from drainfsm.log.journal import Journal, journal_path, read_journal
from drainfsm.testing.scenario import Scenario
from drainfsm_kit.logs import records_of

JOB = "job"


class Log(Protocol):
    async def append(self, record: Record) -> None: ...

    async def read(self) -> list[Record]: ...


class JournalLog:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def append(self, record: Record) -> None:
        self._journal.append(record)

    async def read(self) -> list[Record]:
        return list(read_journal(self._journal.path))


class StreamLog:
    """A writer that believes what it has read: the sequence of the last record."""

    def __init__(self, connection: Connection, job_id: str) -> None:
        self._connection = connection
        self._job_id = job_id

    async def append(self, record: Record) -> None:
        record = msgspec.structs.replace(record, job_id=self._job_id)
        subject = subject_of(job_id=self._job_id, epoch=record.epoch)
        sequences = [0] + [m.sequence async for m in self._connection.messages(subject)]
        if record.follows >= len(sequences):
            raise StaleWriterError(
                subject, expected_count=record.follows, actual_count=len(sequences) - 1
            )
        await self._connection.append(record, after_sequence=sequences[record.follows])

    async def read(self) -> list[Record]:
        found = await self._connection.read_subject(subject_of(job_id=self._job_id, epoch=1))
        return [msgspec.structs.replace(record, job_id=JOB) for record in found]


@asynccontextmanager
async def journal_log(tmp_path: Path, server: EmbeddedServer, name: str) -> AsyncIterator[Log]:
    journal = Journal.open(journal_path(tmp_path, job_id=JOB, epoch=1), job_id=JOB, epoch=1)
    try:
        yield JournalLog(journal)
    finally:
        journal.close()


@asynccontextmanager
async def stream_log(tmp_path: Path, server: EmbeddedServer, name: str) -> AsyncIterator[Log]:
    connection = await connect(server.url, timeout_s=30)
    try:
        await connection.ensure_stream()
        yield StreamLog(connection, name)
    finally:
        await connection.close()


LOGS = {"journal": journal_log, "jetstream": stream_log}
Scene = Callable[[Log], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture(params=sorted(LOGS))
def play(request: pytest.FixtureRequest, tmp_path: Path, nats_server: EmbeddedServer) -> Play:
    """Opens the log, plays a scene on it, closes it. Every call opens the same log."""
    name = f"job-{uuid.uuid4().hex}"

    def run(scene: Scene) -> None:
        async def opened() -> None:
            async with LOGS[request.param](tmp_path, nats_server, name) as log:
                await scene(log)

        asyncio.run(opened())

    return run


def test_a_new_log_is_empty(play: Play) -> None:
    async def scene(log: Log) -> None:
        assert await log.read() == []

    play(scene)


def test_records_come_back_in_order_and_as_they_were(play: Play) -> None:
    drain = Scenario().saving()
    history = drain.given(drain.staged(), drain.durable()).history

    async def write(log: Log) -> None:
        for record in history:
            await log.append(record)
        assert await log.read() == history

    async def read_again(log: Log) -> None:
        found = await log.read()
        assert found == history
        fold = Fold(job_id=JOB, epoch=1)
        assert all(fold.read(record) for record in found)
        assert fold.state == drain.state

    play(write)
    play(read_again)


def test_an_event_of_a_newer_version_is_kept(play: Play) -> None:
    body = b'{"kind":"moon_phase_changed","illumination":0.5}'
    fact = UnknownFact(kind="moon_phase_changed", body=msgspec.Raw(body))
    (record,) = records_of(JOB, 1)
    record = msgspec.structs.replace(record, events=(*record.events, fact))

    async def scene(log: Log) -> None:
        await log.append(record)
        assert await log.read() == [record]

    play(scene)


@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_a_stale_writer_is_refused_and_changes_nothing(play: Play, position: int) -> None:
    ours = records_of(JOB, 3)
    (stale,) = records_of(JOB, 1, first=position, writer="stale")

    async def scene(log: Log) -> None:
        for record in ours:
            await log.append(record)
        with pytest.raises(StaleWriterError, match=r"drainfsm\.v1\.job.*\.1 holds"):
            await log.append(stale)
        assert await log.read() == ours
        (more,) = records_of(JOB, 1, first=3)
        await log.append(more)
        assert await log.read() == [*ours, more]

    play(scene)


def test_a_repeated_record_is_refused(play: Play) -> None:
    ours = records_of(JOB, 2)

    async def scene(log: Log) -> None:
        for record in ours:
            await log.append(record)
        with pytest.raises(StaleWriterError):
            await log.append(ours[-1])
        assert await log.read() == ours

    play(scene)
