"""What ``drainfsm supervise`` does after an attempt: asks the policy, and records its decision."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from drainfsm.cli.stores import decisions_in
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import journals
from drainfsm.policy.decisions import read_decisions, record_decision
from drainfsm.policy.events import Ended, PastAttempt, RestartAction, RestartDecided, Row
from drainfsm.policy.restarts import chance_of, decide_restart, row_of
from drainfsm.policy.rules import RestartRules
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.attempt_end import FENCED_EXIT_CODE, NO_PROGRESS_EXIT_CODE
from drainfsm.runtime.supervisor import Next
from drainfsm.runtime.threads import in_thread
from drainfsm.store import ObjectStore
from drainfsm.views.attempts import Ending, attempt_report, see
from drainfsm.views.history import read_file
from drainfsm.views.replay import replay_attempt

RECORD_S_MAX = 10.0
"""For reading what an attempt left, and for recording the decision, where the state directory
hangs."""

BY_EXIT_CODE = {
    0: Ended.FINISHED,
    FENCED_EXIT_CODE: Ended.SUPERSEDED,
    NO_PROGRESS_EXIT_CODE: Ended.NO_PROGRESS,
}

T = TypeVar("T")
log = logging.getLogger("drainfsm.supervise")


class Left(NamedTuple):
    """What the journal of an attempt says about it."""

    epoch: int
    drained: bool
    cause: str
    committed: bool


class Restarts:
    """The row of a job's attempts, continued from what stands in the state directory."""

    def __init__(self, state_dir: Path, *, job: str, rules: RestartRules) -> None:
        self._state_dir = state_dir
        self._job = job
        self._rules = rules
        self._row = Row()
        self._newest_epoch = 0

    async def begin(self) -> None:
        """Go on where an earlier supervisor of the job stopped."""
        self._newest_epoch, self._row = await self._within(self._read) or (0, Row())

    async def after(self, code: int, lived_s: float) -> Next:
        """``code`` as Python gives it: negative for a signal."""
        left = await self._within(lambda: left_by(self._state_dir, job=self._job))
        if left is not None and left.epoch <= self._newest_epoch:
            left = None  # this one never claimed the job
        elif left is not None:
            self._newest_epoch = left.epoch
        attempt = past_attempt(code, left, lived_ms=round(lived_s * 1_000))
        now_unix_ms = Clock().now_unix_ms()
        decision = decide_restart(
            self._row,
            attempt,
            self._rules,
            job_id=self._job,
            chance=chance_of(self._job, attempt.epoch or now_unix_ms),
            now_unix_ms=now_unix_ms,
        )
        self._row = decision.row
        await self._within(lambda: record_decision(self._store(), decision))
        again = decision.action is RestartAction.RESTART
        return Next(decision.pause_ms / 1_000 if again else None, decision.reason)

    def _read(self) -> tuple[int, Row]:
        mine = [
            one
            for one in read_decisions(self._store())
            if isinstance(one, RestartDecided) and one.job_id == self._job
        ]
        return max(journals(self._state_dir, self._job), default=0), row_of(mine)

    def _store(self) -> ObjectStore:
        store = decisions_in(self._state_dir, job=self._job)
        store.create(parents=True)
        return store

    async def _within(self, work: Callable[[], T]) -> T | None:
        """None: it could not be done, which is logged."""
        try:
            async with asyncio.timeout(RECORD_S_MAX):
                return await in_thread("decisions", work)
        except (DrainfsmError, OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {RECORD_S_MAX:g} s"
            log.warning("the state directory cannot be used for decisions: %s", why)
            return None


def left_by(state_dir: Path, *, job: str) -> Left | None:
    """By the newest attempt of which there is a journal here; None: there is none."""
    newest = max(journals(state_dir, job).items(), default=None)
    if newest is None:
        return None
    for attempt_log in read_file(newest[1]).logs:
        report = attempt_report(see(replay_attempt(attempt_log)), last_seen_unix_ms=None)
        drained = report.ending is Ending.DRAINED
        return Left(
            epoch=newest[0],
            drained=drained,
            cause=report.reason if drained else "",
            committed=report.commit_count > 0,
        )
    return None


def past_attempt(code: int, left: Left | None, *, lived_ms: int) -> PastAttempt:
    """A signal ends an agent only where it is lost; 75 without a drain is a loss, too."""
    if code in BY_EXIT_CODE:
        ended = BY_EXIT_CODE[code]
    elif code == EX_TEMPFAIL or code < 0:
        drained = left is not None and left.drained and code == EX_TEMPFAIL
        ended = Ended.PREEMPTED if drained else Ended.LOST
    else:
        ended = Ended.FAILED
    return PastAttempt(
        epoch=left.epoch if left else 0,
        ended=ended,
        lived_ms=lived_ms,
        progressed=left.committed if left else None,
        cause=left.cause if left else "",
    )
