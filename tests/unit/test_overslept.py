"""A SOFT instant that passed while nothing ran."""

from __future__ import annotations

import asyncio
import time

import pytest

from drainfsm.runtime.agent.limits import Limits
from drainfsm.runtime.clock import Clock

HOUR_NS = 3_600 * 10**9


class Pausing:
    """A clock that goes on while everything stands still."""

    def __init__(self) -> None:
        self.paused_ns = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.paused_ns

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.paused_ns


@pytest.mark.parametrize(("scheduled", "acts"), [(True, []), (False, ["kill", "leave"])])
def test_a_node_that_slept_over_the_instant_of_a_drain_that_waits_hears_first(
    scheduled: bool, acts: list[str]
) -> None:
    async def story() -> list[str]:
        source, done = Pausing(), list[str]()
        clock = Clock(source)
        limits = Limits(
            clock, kill=lambda why: done.append("kill"), leave=lambda: done.append("leave")
        )
        now_unix_ms = clock.now_unix_ms()
        limits.set_backstop(now_unix_ms + 50, now_unix_ms + 60, scheduled=scheduled)
        source.paused_ns = HOUR_NS
        await asyncio.sleep(0.3)
        limits.close()
        return done

    assert asyncio.run(story()) == acts
