"""The attempts of a job as recorded in its checkpoint store, to decide about its restart."""

from __future__ import annotations

from typing import NamedTuple

from drainfsm.core.manifest import Claim, Commit
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import RequeueRecord
from drainfsm.policy.events import Ended, PastAttempt
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.requeues import count_without_progress, read_requeue

BY_CAUSE = {
    Cause.FINISHED: Ended.FINISHED,
    Cause.FAILED: Ended.FAILED,
    Cause.LOST: Ended.LOST,
}
"""Every other cause is that of a notice."""

ATTEMPTS_READ = 64
"""Attempts that are looked at: more than any budget of attempts in a row."""


class Past(NamedTuple):
    attempts: tuple[PastAttempt, ...]
    """Those that have ended, oldest first."""

    ended_unix_ms: int
    """The newest of them; 0: there is none."""

    running: bool
    """A newer one has claimed the job, and left nothing yet: it runs, or was lost."""

    claimed_unix_ms: int
    """By the newest attempt; 0: there was none."""


def past_attempts(store: ObjectStore, *, job_id: str, attempts_max: int) -> Past:
    """``attempts_max``: this many in a row that leave on the same checkpoint make no progress; 0:
    never.

    Raises:
        CommitLogError: the log or a record is damaged, or of another job.
        StoreUnreachableError: the store does not answer.
    """
    claims: dict[int, int] = {}
    commits: dict[int, int] = {}
    for _, slot in CommitLog(store, job_id=job_id).slots():
        match slot:
            case Claim():
                claims[slot.epoch] = slot.claimed_unix_ms
            case Commit():
                commits[slot.epoch] = slot.committed_unix_ms
    records = {epoch: read_requeue(store, epoch=epoch) for epoch in sorted(claims)[-ATTEMPTS_READ:]}
    found = tuple(
        _attempt(record, claimed_unix_ms=claims[epoch], committed_unix_ms=commits.get(epoch))
        for epoch, record in records.items()
        if record is not None
    )
    newest = records.get(found[-1].epoch) if found else None
    if newest is not None and found[-1].ended is Ended.PREEMPTED and attempts_max:
        row = count_without_progress(store, epoch=newest.epoch, most=attempts_max)
        if row >= attempts_max:
            found = (*found[:-1], _stuck(found[-1]))
    return Past(
        attempts=found,
        ended_unix_ms=newest.recorded_unix_ms if newest else 0,
        running=bool(claims) and (newest is None or newest.epoch < max(claims)),
        claimed_unix_ms=claims[max(claims)] if claims else 0,
    )


def _attempt(
    record: RequeueRecord, *, claimed_unix_ms: int, committed_unix_ms: int | None
) -> PastAttempt:
    """When a lost one ended is not known; its record was written when it was missed."""
    ended = BY_CAUSE.get(record.cause, Ended.PREEMPTED)
    end = record.recorded_unix_ms if ended is not Ended.LOST else committed_unix_ms
    return PastAttempt(
        epoch=record.epoch,
        ended=ended,
        lived_ms=max(0, (end or claimed_unix_ms) - claimed_unix_ms),
        progressed=committed_unix_ms is not None,
        cause=str(record.cause),
    )


def _stuck(attempt: PastAttempt) -> PastAttempt:
    return PastAttempt(
        epoch=attempt.epoch,
        ended=Ended.NO_PROGRESS,
        lived_ms=attempt.lived_ms,
        progressed=False,
        cause=attempt.cause,
    )
