"""A stream that goes, comes back as another one, or was set back, under a view that follows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from drainfsm.core.records import subject_of
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import Connection, connect
from drainfsm.log.stream import STREAM
from drainfsm.testing.scenario import Scenario
from drainfsm.views.watch import Reader

WAIT_S = 120.0


@contextlib.asynccontextmanager
async def reading(reader: Reader) -> AsyncIterator[None]:
    running = asyncio.ensure_future(reader.run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(reader: Reader, wanted: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not wanted():
            await reader.changed.wait()
            reader.changed.clear()


async def append(connection: Connection, *job_ids: str) -> None:
    await connection.ensure_stream()
    for job_id in job_ids:
        after = 0
        for record in Scenario(job_id=job_id).history:
            assert record.epoch == 1
            after = await connection.append(record, after_sequence=after)
        assert (await connection.last(subject_of(job_id=job_id, epoch=1))) is not None


async def delete(connection: Connection) -> None:
    await connection.link.client.jetstream().delete_stream(STREAM)


def test_a_stream_that_is_gone_is_told_and_another_one_is_read_from_its_beginning(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def scene() -> None:
        reader = Reader(clock=lambda: 1, nats=own_nats_server.url, state_dir=tmp_path)
        connection = await connect(own_nats_server.url, timeout_s=10)
        await append(connection, "first", "second", "third")
        async with reading(reader):
            await until(reader, lambda: len(reader.projection.jobs) == 3)
            assert reader.stale_since_unix_ms is None
            await delete(connection)
            await until(reader, lambda: reader.stale_since_unix_ms is not None)
            assert "no such stream" in reader.error
            await append(connection, "other")  # fewer messages than were read
            await until(reader, lambda: set(reader.projection.jobs) == {"other"})
            await until(reader, lambda: reader.stale_since_unix_ms is None)
            await append(connection, "more")
            await until(reader, lambda: set(reader.projection.jobs) == {"other", "more"})
        await connection.close()

    asyncio.run(scene())


def test_a_stream_that_lost_its_end_is_read_from_its_beginning(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async def scene() -> None:
        reader = Reader(clock=lambda: 1, nats=own_nats_server.url, state_dir=tmp_path)
        connection = await connect(own_nats_server.url, timeout_s=10)
        await append(connection, "job")
        async with reading(reader):
            await until(reader, lambda: len(reader.projection.jobs) == 1)
            before = reader.projection
            before.read_garbage("what the server has forgotten", sequence=1_000)
            await until(reader, lambda: reader.projection is not before)
            await until(reader, lambda: len(reader.projection.jobs) == 1)
            assert reader.projection.unreadable_count == 0
        await connection.close()

    asyncio.run(scene())
