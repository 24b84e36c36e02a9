"""Puts whole logs into a stream, for tests of what reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from drainfsm.core.records import subject_of
from drainfsm.log.jetstream import connect
from drainfsm.views.replay import AttemptLog


def ship(url: str, logs: Iterable[AttemptLog]) -> None:
    """Behind what is there of the same attempts."""

    async def run() -> None:
        connection = await connect(url, timeout_s=10)
        try:
            await connection.ensure_stream()
            for log in logs:
                last = await connection.last(subject_of(job_id=log.job_id, epoch=log.epoch))
                after = 0 if last is None else last.seq
                for record in log.records:
                    after = await connection.append(record, after_sequence=after)
        finally:
            await connection.close()

    asyncio.run(run())
