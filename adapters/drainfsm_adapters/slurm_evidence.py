"""What Slurm's records say about why and when this run ends. Pure.

The signal does not tell: SIGTERM comes with the time limit, scancel, a requeue, a preemption and
from anybody's ``kill``. What counts is the job's record, and three facts about it (measured with
22.05, and in the source of 26.11):

- a run ends no sooner than its EndTime, and up to half a minute later. EndTime is live: a limit
  can be raised or lowered until preemption has set PreemptTime, which lowers EndTime for good;
- what ends a run changes its record first, and then sends SIGTERM; SIGKILL follows after KillWait;
- a requeue raises the restart count at once, while the processes of the old run still live.
"""

from __future__ import annotations

import msgspec

from drainfsm.core.notice import NoticeClass
from drainfsm_adapters.ledger import Observed
from drainfsm_adapters.slurm_options import Run
from drainfsm_adapters.slurm_records import NO_LIMIT_AHEAD_S, SlurmJob, SlurmLimits, SlurmNode

WARNING_EARLY_S = 65
"""``--signal=…@N`` comes up to 60 s before N (man sbatch); some for the way."""

KILL_EARLY_MS = 500
"""SIGKILL was measured 4.68 s after SIGTERM with a KillWait of 5 s."""

KILL_WAIT_S_MIN = 5
OWN_REASON = "drainfsm:"
"""How the reason of our own cordon begins."""


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """Of one signal."""

    cause: str
    deadline_unix_ms: int | None
    """None: nothing but the job's grace is known."""

    detail: str


def killed_by_unix_ms(*, signalled_unix_ms: int, limits: SlurmLimits, grace_ms: int) -> int:
    """After a SIGTERM that ends the run: the job's grace, or KillWait where that is shorter."""
    wait_ms = grace_ms
    if limits.kill_wait_s is not None:
        wait_s = max(limits.kill_wait_s, KILL_WAIT_S_MIN)
        wait_ms = min(wait_ms, wait_s * 1_000 - KILL_EARLY_MS)
    return signalled_unix_ms + wait_ms


def end_of(
    job: SlurmJob,
    *,
    run: Run,
    limits: SlurmLimits,
    grace_ms: int,
    now_unix_ms: int,
    shortened: bool,
) -> Observed | None:
    """The end of this run, as its record states it now. ``shortened``: it was later before."""
    soon = killed_by_unix_ms(signalled_unix_ms=now_unix_ms, limits=limits, grace_ms=grace_ms)
    if job.restarts > run.restarts:
        return _end("requeue", soon, f"run {job.restarts} has replaced this one: {_told(job)}")
    if job.ending:  # its EndTime is when that began
        late_ms = max(0, now_unix_ms - (job.end_unix_s or now_unix_ms) * 1_000)
        return _end(ending_cause(job), soon - late_ms, _told(job))
    if job.end_unix_s is None:
        return None
    end_unix_ms = job.end_unix_s * 1_000
    if end_unix_ms - now_unix_ms > NO_LIMIT_AHEAD_S * 1_000:
        return None
    cause = "time_limit_shortened" if shortened else "time_limit"
    if job.preempt_unix_s is not None:
        cause = "preemption"
    if end_unix_ms <= now_unix_ms:
        return _end(cause, soon, f"its end has passed: {_told(job)}")
    preempted = job.preempt_unix_s is not None
    return Observed(
        key="end",
        cause=cause,
        notice_class=NoticeClass.HARD if preempted else NoticeClass.SOFT,
        stated_unix_ms=end_unix_ms,
        detail=_told(job),
    )


def _end(cause: str, deadline_unix_ms: int, detail: str) -> Observed:
    return Observed(
        key="end",
        cause=cause,
        notice_class=NoticeClass.HARD,
        derived_unix_ms=deadline_unix_ms,
        detail=detail,
    )


def ending_cause(job: SlurmJob) -> str:
    """Why a run is being ended whose restart count has not risen."""
    reason = job.reason.lower()
    if "TIMEOUT" in job.states or "DEADLINE" in job.states or reason == "timelimit":
        return "time_limit"
    if "PREEMPTED" in job.states or job.preempt_unix_s is not None:
        return "preemption"
    if "NODE_FAIL" in job.states or reason == "nodedown":
        return "node_failure"
    return "cancelled"


def meaning_of(
    name: str,
    job: SlurmJob | None,
    *,
    run: Run,
    limits: SlurmLimits,
    grace_ms: int,
    warning_s: float,
    signalled_unix_ms: int,
) -> Meaning | None:
    """Of the signal of that name. None: the end that the job's record states says it all."""
    killed_by = killed_by_unix_ms(
        signalled_unix_ms=signalled_unix_ms, limits=limits, grace_ms=grace_ms
    )
    if job is None:  # SIGTERM may well be followed by SIGKILL
        deadline = killed_by if name == "SIGTERM" else None
        return Meaning(cause="unknown", deadline_unix_ms=deadline, detail="no record to compare")
    told = _told(job)
    if job.restarts > run.restarts:
        return Meaning(cause="requeue", deadline_unix_ms=killed_by, detail=told)
    if job.ending:
        return Meaning(cause=ending_cause(job), deadline_unix_ms=killed_by, detail=told)
    left_ms = None
    if job.end_unix_s is not None:
        left_ms = job.end_unix_s * 1_000 - signalled_unix_ms
        if left_ms <= 0:
            cause = "time_limit" if job.preempt_unix_s is None else "preemption"
            return Meaning(cause=cause, deadline_unix_ms=killed_by, detail=told)
        if job.preempt_unix_s is not None or left_ms <= (warning_s + WARNING_EARLY_S) * 1_000:
            return None
    deadline = signalled_unix_ms + (grace_ms if left_ms is None else min(grace_ms, left_ms))
    detail = f"nothing in the job's record explains it: {told}"
    return Meaning(cause="unknown", deadline_unix_ms=deadline, detail=detail)


def drained_of(nodes: tuple[SlurmNode, ...]) -> Observed | None:
    """Slurm lets jobs finish on a drained node: no deadline."""
    drained = [n for n in nodes if n.drained and not n.reason.startswith(OWN_REASON)]
    if not drained:
        return None
    return Observed(
        key="node-drain",
        cause="node_drain",
        notice_class=NoticeClass.SOFT,
        detail="; ".join(f"{n.name}: {n.reason}" if n.reason else n.name for n in drained),
        nodes=tuple(n.name for n in drained),
    )


def reservation_of(end_unix_s: int | None, *, name: str, now_unix_ms: int) -> Observed | None:
    """A run in a reservation ends with it, whatever its own limit says."""
    if end_unix_s is None or end_unix_s * 1_000 - now_unix_ms > NO_LIMIT_AHEAD_S * 1_000:
        return None
    return Observed(
        key="reservation",
        cause="reservation_end",
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=end_unix_s * 1_000,
        detail=f"reservation {name} ends",
    )


def _told(job: SlurmJob) -> str:
    said = [f"JobState={'+'.join(sorted(job.states))}", f"Restarts={job.restarts}"]
    if job.reason not in ("", "None"):
        said.append(f"Reason={job.reason}")
    if job.end_unix_s is not None:
        said.append(f"EndTime={job.end_unix_s}")
    if job.preempt_unix_s is not None:
        said.append(f"PreemptTime={job.preempt_unix_s}")
    return " ".join(said)
