"""Puts whole logs into a stream, for tests of what reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from drainfsm.log.jetstream import connect
from drainfsm.views.replay import AttemptLog


def ship(url: str, logs: Iterable[AttemptLog]) -> None:
    async def run() -> None:
        connection = await connect(url, timeout_s=10)
        try:
            await connection.ensure_stream()
            for log in logs:
                after = 0
                for record in log.records:
                    after = await connection.append(record, after_sequence=after)
        finally:
            await connection.close()

    asyncio.run(run())
