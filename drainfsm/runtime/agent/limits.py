"""When a node kills what is left of the job, and when its agent ends, whatever is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drainfsm.core.overslept import HEAR_MS, LATE_MS
from drainfsm.runtime.clock import Clock

NEWS_MS = 2 * HEAR_MS
"""Until the coordinator must have said what becomes of the drain."""


class Limits:
    """The earliest of the coordinator's word, its backstop and the node's own limit counts."""

    def __init__(
        self, clock: Clock, *, kill: Callable[[str], None], leave: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._kill = kill
        self._leave = leave
        self._own: int | None = None
        self._own_exit_by: int | None = None
        self._backstop: int | None = None
        self._ordered: int | None = None
        self._exit_by: int | None = None
        self._scheduled = False
        self._kill_timer: asyncio.TimerHandle | None = None
        self._leave_timer: asyncio.TimerHandle | None = None

    def set_own(self, kill_by_unix_ms: int | None, exit_by_unix_ms: int | None = None) -> None:
        self._own, self._own_exit_by = kill_by_unix_ms, exit_by_unix_ms
        self._arm()

    def set_backstop(
        self,
        kill_by_unix_ms: int | None,
        exit_by_unix_ms: int | None,
        *,
        scheduled: bool = False,
    ) -> None:
        """``scheduled``: the drain may be called off until then. Where its instant has passed while
        nothing ran, there is some time for that."""
        self._backstop, self._exit_by = kill_by_unix_ms, exit_by_unix_ms
        self._scheduled = scheduled
        self._arm()

    def set_leave(self, kill_by_unix_ms: int) -> None:
        self._ordered = kill_by_unix_ms
        self._arm()

    def close(self) -> None:
        for timer in (self._kill_timer, self._leave_timer):
            if timer is not None:
                timer.cancel()

    def _arm(self) -> None:
        self.close()
        loop = asyncio.get_running_loop()
        if (kill_by := _earliest(self._own, self._backstop, self._ordered)) is not None:
            delay_s = self._clock.seconds_until(kill_by)
            self._kill_timer = loop.call_later(delay_s, self._fire, kill_by, self._kill_now)
        if (exit_by := _earliest(self._own_exit_by, self._exit_by)) is not None:
            delay_s = self._clock.seconds_until(exit_by)
            self._leave_timer = loop.call_later(delay_s, self._fire, exit_by, self._leave)

    def _fire(self, due_unix_ms: int, act: Callable[[], None]) -> None:
        late_ms = self._clock.now_unix_ms() - due_unix_ms
        if (
            late_ms >= LATE_MS
            and self._scheduled
            and due_unix_ms in (self._backstop, self._exit_by)
        ):
            self._put_off(late_ms + NEWS_MS)
        else:
            act()

    def _put_off(self, by_ms: int) -> None:
        """Once."""
        self._scheduled = False
        kill_by, exit_by = self._backstop, self._exit_by
        self._backstop = None if kill_by is None else kill_by + by_ms
        self._exit_by = None if exit_by is None else exit_by + by_ms
        self._arm()

    def _kill_now(self) -> None:
        self._kill("it had to be gone by now")


def _earliest(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
