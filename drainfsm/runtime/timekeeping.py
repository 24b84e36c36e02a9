"""When a node kills what is left of the job, and when its agent ends, whatever is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drainfsm.runtime.clock import Clock


class Limits:
    """The earliest of the coordinator's word, its backstop and the node's own limit counts."""

    def __init__(
        self, clock: Clock, *, kill: Callable[[str], None], leave: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._kill = kill
        self._leave = leave
        self._own: int | None = None
        self._backstop: int | None = None
        self._told: int | None = None
        self._exit_by: int | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._leave_timer: asyncio.TimerHandle | None = None

    def set_own(self, kill_by_unix_ms: int | None) -> None:
        self._own = kill_by_unix_ms
        self._arm()

    def set_backstop(self, kill_by_unix_ms: int | None, exit_by_unix_ms: int | None) -> None:
        self._backstop, self._exit_by = kill_by_unix_ms, exit_by_unix_ms
        self._arm()

    def set_leave(self, kill_by_unix_ms: int) -> None:
        self._told = kill_by_unix_ms
        self._arm()

    def close(self) -> None:
        for timer in (self._kill_timer, self._leave_timer):
            if timer is not None:
                timer.cancel()

    def _arm(self) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        limits = [limit for limit in (self._own, self._backstop, self._told) if limit is not None]
        if limits:
            delay_s = self._clock.seconds_until(min(limits))
            self._kill_timer = loop.call_later(delay_s, self._kill, "it had to be gone by now")
        if self._exit_by is not None:
            delay_s = self._clock.seconds_until(self._exit_by)
            self._leave_timer = loop.call_later(delay_s, self._leave)
