"""When an attempt is over, and what it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from drainfsm.core.deadline import exit_plan_of
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.exit_plan import kill_to_give_up_ms
from drainfsm.core.inputs import AnyInput, ReportExited
from drainfsm.core.state import Phase, State
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.node_reports import NodeReports

FENCED_EXIT_CODE = 76
"""A newer attempt of the job runs: do not requeue this one."""

NO_PROGRESS_EXIT_CODE = 77
"""Attempt after attempt left on the same checkpoint: hold the job until somebody looks at it."""

OVER_S = 5.0
"""For the last records and the last processes of an attempt that is over outside a drain."""

LAST_SAVE_S = 60.0
"""Besides, where the job has ended by itself: its last step may still be being committed, and
nobody is in a hurry."""

ACTS_MS_MAX = 600_000
"""At most, however far ahead the deadline is. Then somebody must look at the platform."""

FAREWELL_MS = 5_000
"""Outside a drain: for adapters' last acts and the shipper's last records."""


LOST_ACTS_MS, LATE_ACTS_MS = 30_000, 2_000
"""For the same acts, where an attempt is lost and no deadline is known, and where it has passed."""


class AttemptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the attempt ended."""

    exit_code: int
    requeue: bool
    state: State
    left_for: tuple[str, ...] = ()
    """Identities of the notices that a drain has left for."""


def ended_by_itself(state: State) -> bool:
    """The job has ended, and no drain has made it."""
    attempt, phase = state.attempt, state.phase
    drained = phase is Phase.EXITED and attempt.exit_code == EX_TEMPFAIL
    return attempt.exit_code is not None and phase is not Phase.LOST and not drained


class AttemptEnd:
    """Watches for the end, and makes sure that it comes."""

    def __init__(
        self, *, clock: Clock, reports: NodeReports, submit: Callable[[AnyInput], Any]
    ) -> None:
        self._clock = clock
        self._reports = reports
        self._submit = submit
        self._over = asyncio.Event()
        self._closing = False
        self._told_to_leave = False
        self._everybody_exited = False

    async def wait(self) -> None:
        await self._over.wait()

    def told_to_leave(self, state: State, *, kill_by_unix_ms: int) -> None:
        """Agents kill what is left at that time; soon after it the coordinator waits for nobody."""
        self._told_to_leave = True
        margin_ms = state.attempt.allowances.exit_margin_ms
        limit = kill_by_unix_ms + kill_to_give_up_ms(margin_ms)
        asyncio.get_running_loop().call_later(self._clock.seconds_until(limit), self._give_up)

    def _give_up(self) -> None:
        if not self._everybody_exited:
            self._submit(ReportExited(exit_code=EX_TEMPFAIL, nodes=self._reports.exits()))

    def node_exited(self, state: State, *, everybody: bool) -> None:
        if not everybody or self._everybody_exited:
            return
        self._everybody_exited = True
        own = self._reports.first_failure
        undone = own != 0 or self._reports.unclosed
        drained = self._told_to_leave or (state.phase.draining and undone)
        exit_code = EX_TEMPFAIL if drained else own
        self._submit(ReportExited(exit_code=exit_code, nodes=self._reports.exits()))
        self.decided(state)

    def decided(self, state: State) -> None:
        """Called after every decision."""
        if state.attempt.exit_code is None and not (
            state.phase.over and state.phase is not Phase.CANCELLED
        ):
            return
        gone = self._everybody_exited or state.phase is Phase.EXITED
        if state.attempt.requeue is not None and gone:
            self._over.set()
        elif not self._closing:
            self._closing = True
            longest_s = LAST_SAVE_S + 2 * OVER_S if ended_by_itself(state) else OVER_S
            asyncio.get_running_loop().call_later(longest_s, self._over.set)

    def time_left_ms(self, state: State) -> int:
        """Time for what comes after the end."""
        return min(FAREWELL_MS, self.acts_left_ms(state))

    def acts_left_ms(self, state: State) -> int:
        """For the adapters' last acts, which may have to wait for their platform."""
        if state.phase is Phase.LOST and state.attempt.fenced_by is None:
            return LOST_ACTS_MS
        if state.phase is not Phase.EXITED:
            return FAREWELL_MS
        if state.current.deadline_unix_ms <= self._clock.now_unix_ms():
            return LATE_ACTS_MS  # no time is left, but whoever is still alive may try
        left_ms = exit_plan_of(state).exit_by_unix_ms - self._clock.now_unix_ms()
        return max(0, min(ACTS_MS_MAX, left_ms))

    def outcome(self, state: State, *, fenced: bool) -> AttemptOutcome:
        if fenced:
            return AttemptOutcome(exit_code=FENCED_EXIT_CODE, requeue=False, state=state)
        exit_code = EX_TEMPFAIL if state.attempt.exit_code is None else state.attempt.exit_code
        requeue = exit_code == EX_TEMPFAIL and (state.phase in (Phase.LOST, Phase.EXITED))
        return AttemptOutcome(
            exit_code=exit_code,
            requeue=requeue,
            state=state,
            left_for=state.current.left_for if requeue and state.phase is Phase.EXITED else (),
        )
