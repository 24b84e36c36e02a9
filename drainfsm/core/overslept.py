"""A SOFT instant that passed while nothing ran: a suspended job, a frozen machine.

Nobody could act on it, and it has not come true, for the job is still here; Slurm moves the end of
a job that it had suspended. So the sources are heard first. What they leave as it was is given anew
without an instant: the job has its grace.
"""

from __future__ import annotations

from msgspec.structs import replace

from drainfsm.core.deadline import budget_of
from drainfsm.core.inputs import AnyInput, ReceiveNotice, WithdrawNotice
from drainfsm.core.notice import stated_revision
from drainfsm.core.state import Phase, State

LATE_MS = 3_000
"""Whoever is woken so much later than asked was paused."""

HEAR_MS = 10_000
"""For sources to read again what they had read before the pause."""

REASON = "its instant has passed while nothing ran, and the job is still here"


def overslept(state: State, *, now_unix_ms: int, late_ms: int) -> bool:
    """The drain should have begun in the pause, and what is left of its time saves nothing."""
    if state.phase is not Phase.SCHEDULED or late_ms < LATE_MS:
        return False
    return not budget_of(state, now_unix_ms=now_unix_ms).fits


def given_anew(state: State, *, now_unix_ms: int) -> tuple[AnyInput, ...]:
    """Of a drain that still waits, and whose deadline has passed: its notices are taken back, and
    given again without an instant. The job has its grace from now. Empty: it is not to be done."""
    if state.phase is not Phase.SCHEDULED or state.current.deadline_unix_ms > now_unix_ms:
        return ()
    given: list[AnyInput] = []
    for held in state.current.notices.values():
        if held.withdrawn:
            continue
        notice, revision = held.notice, held.revision
        back = WithdrawNotice(
            source=notice.source, native_id=notice.native_id, revision=revision, reason=REASON
        )
        again = replace(
            notice,
            revision=stated_revision(revision + 1),
            deadline_unix_ms=None,
            received_unix_ms=now_unix_ms,
            clock_skew_ms=0,
            assumed=True,
        )
        given += [back, ReceiveNotice(notice=again)]
    # all are taken back first: the old deadline would stay as long as one notice does
    return tuple(sorted(given, key=lambda one: isinstance(one, ReceiveNotice)))
