"""The live view over a real server: past garbage, over a restart, and from where it stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.testing.scenario import Scenario
from drainfsm.views.watch import Reader

HEARD_S = 60.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HEARD_S):
        while not condition():
            await asyncio.sleep(0.02)


async def ship(url: str, scenario: Scenario, *, after: int = 0, garbage: bytes = b"") -> int:
    """Append the records; answers the sequence of the last one."""
    connection = await connect(url, timeout_s=10)
    try:
        await connection.ensure_stream()
        if garbage:
            await connection.link.client.publish("drainfsm.v1.stranger.1", garbage)
            await connection.link.client.flush()
        for record in scenario.history:
            after = await connection.append(record, after_sequence=after)
        return after
    finally:
        await connection.close()


def test_it_goes_on_past_garbage_and_over_a_restart(
    own_nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    scenario = Scenario(job_id="watched")

    async def run() -> None:
        server = own_nats_server
        last = await ship(server.url, scenario, garbage=b"no record")
        reader = Reader(clock=lambda: scenario.now_unix_ms, nats=server.url, state_dir=tmp_path)
        running = asyncio.ensure_future(reader.run())
        again = server
        try:
            await until(lambda: reader.projection.sequence == last)
            assert reader.projection.unreadable_count == 1
            server.kill()
            await until(lambda: reader.stale_since_unix_ms is not None)
            again = await asyncio.to_thread(EmbeddedServer.start, server.data_dir, port=server.port)
            await until(lambda: reader.stale_since_unix_ms is None)
            scenario.history.clear()
            scenario.when(scenario.notice(in_ms=60_000))
            await ship(again.url, scenario, after=last)
            await until(lambda: reader.projection.sequence > last)
            (status,) = reader.projection.statuses(now_unix_ms=scenario.now_unix_ms)
            assert status.phase == "noticed"
            assert reader.projection.unreadable_count == 1
        finally:
            running.cancel()
            await asyncio.wait([running])  # it closes its connection
            again.kill()

    asyncio.run(run())
