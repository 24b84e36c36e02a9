"""What Slurm's records say about why and when this run ends. Pure.

The signal does not tell: SIGTERM comes with the time limit, scancel, a requeue, a preemption and
from anybody's ``kill``. What counts is the job's record, and three facts about it (measured with
22.05, and read in the source of 26.11):

- a run ends no sooner than its EndTime, and up to half a minute later. EndTime is live: a limit
  can be raised or lowered until preemption has set PreemptTime, which lowers EndTime for good;
- what ends a run changes its record first, and then sends SIGTERM; SIGKILL follows after KillWait;
- a requeue raises the restart count at once, while the processes of the old run still live.
"""

from __future__ import annotations

import msgspec

from drainfsm.core.notice import Cause, NoticeClass
from drainfsm_adapters.ledger import Observed
from drainfsm_adapters.slurm_options import Run
from drainfsm_adapters.slurm_records import (
    NO_LIMIT_AHEAD_S,
    SlurmJob,
    SlurmLimits,
    SlurmNode,
    SlurmReservation,
    hosts_of,
)

WARNING_EARLY_S = 65
"""``--signal=…@N`` comes up to 60 s before N (man sbatch), plus some time for delivery."""

WARNING_LATE_S = 10
"""And never after N, except for a slow controller and delivery."""

GRACE_END_SLACK_S = 1
"""Slurm ends no preempted job before the end that it announced."""

KILL_EARLY_MS = 500
"""SIGKILL was measured 4.68 s after SIGTERM with a KillWait of 5 s."""

KILL_WAIT_S_MIN = 5
OWN_REASON = "drainfsm:"
"""How the reason of our own cordon begins."""


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What one signal means."""

    cause: Cause
    deadline_unix_ms: int | None
    """None: nothing but the job's grace is known."""

    detail: str
    assumed: bool = False
    """The deadline is the job's grace."""


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
    grace_end_unix_s: int | None = None,
) -> Observed | None:
    """The end of this run, as its record states it now. ``shortened``: it was later before.
    ``grace_end_unix_s``: the end that its preemption announced."""
    soon = killed_by_unix_ms(signalled_unix_ms=now_unix_ms, limits=limits, grace_ms=grace_ms)
    if job.restarts > run.restarts:
        return _end(
            Cause.REQUEUE, soon, f"run {job.restarts} has replaced this one: {_described(job)}"
        )
    if job.ending:  # its EndTime is when that began
        late_ms = max(0, now_unix_ms - (job.end_unix_s or now_unix_ms) * 1_000)
        cause = ending_cause(job, grace_end_unix_s=grace_end_unix_s)
        return _end(cause, soon - late_ms, _described(job))
    if job.end_unix_s is None:
        return None
    end_unix_ms = job.end_unix_s * 1_000
    if end_unix_ms - now_unix_ms > NO_LIMIT_AHEAD_S * 1_000:
        return None
    cause = Cause.TIME_LIMIT_SHORTENED if shortened else Cause.TIME_LIMIT
    if job.preempt_unix_s is not None:
        cause = Cause.PREEMPTION
    if end_unix_ms <= now_unix_ms:
        return _end(cause, soon, f"its end has passed: {_described(job)}")
    preempted = job.preempt_unix_s is not None
    return Observed(
        key="end",
        cause=cause,
        notice_class=NoticeClass.HARD if preempted else NoticeClass.SOFT,
        stated_unix_ms=end_unix_ms,
        detail=_described(job),
    )


def _end(cause: Cause, deadline_unix_ms: int, detail: str) -> Observed:
    return Observed(
        key="end",
        cause=cause,
        notice_class=NoticeClass.HARD,
        derived_unix_ms=deadline_unix_ms,
        detail=detail,
    )


BY_STATE = {
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "CANCELLED": Cause.CANCELLED,
    "NODE_FAIL": Cause.NODE_FAILURE,
    "BOOT_FAIL": Cause.NODE_FAILURE,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "FAILED": Cause.FAILED,
    "PREEMPTED": Cause.PREEMPTION,
}
"""In this order: a job that is cancelled in the grace of its preemption keeps PreemptTime."""

BY_REASON = {
    "timelimit": Cause.TIME_LIMIT,
    "nodedown": Cause.NODE_FAILURE,
    "outofmemory": Cause.OUT_OF_MEMORY,
    "nonzeroexitcode": Cause.FAILED,
    "joblaunchfailure": Cause.FAILED,
    "raisedsignal": Cause.FAILED,
}
"""Text of 22.05 says COMPLETING and hides the state."""

OWN_ENDS = {
    Cause.CANCELLED: "was cancelled",
    Cause.FAILED: "has failed",
    Cause.OUT_OF_MEMORY: "was out of memory",
}
"""Ends after which Slurm brings no job back, and a requeue of ours would. In words."""


def ending_cause(job: SlurmJob, *, grace_end_unix_s: int | None = None) -> Cause:
    """Why a run is being ended whose restart count has not risen.

    ``grace_end_unix_s``: the end that its preemption announced. One that ends earlier was
    cancelled, where the state does not tell.
    """
    for state, cause in BY_STATE.items():
        if state in job.states:
            return cause
    if (known := BY_REASON.get(job.reason.lower())) is not None:
        return known
    if job.preempt_unix_s is None:
        return Cause.CANCELLED
    early = None not in (grace_end_unix_s, job.end_unix_s) and (
        (job.end_unix_s or 0) < (grace_end_unix_s or 0) - GRACE_END_SLACK_S
    )
    return Cause.CANCELLED if early else Cause.PREEMPTION


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--signal`` asked for."""

    name: str
    """Empty: nothing."""

    lead_s: float
    heard: bool
    """It has come before: Slurm sends it once in a run."""

    def explains(self, name: str, job: SlurmJob, *, left_ms: int, shortened: bool) -> bool:
        """Whether a signal of that name, this long before the end, is the one that was asked for.
        It comes up to a minute early, and late only where the limit is lower than the lead, or was
        lowered."""
        if name != self.name or self.heard:
            return False
        lead_ms = round(self.lead_s * 1_000)
        if left_ms > lead_ms + WARNING_EARLY_S * 1_000:
            return False
        limit_s = (job.end_unix_s or 0) - (job.start_unix_s or job.end_unix_s or 0)
        may_be_late = shortened or limit_s <= self.lead_s + WARNING_EARLY_S
        return may_be_late or left_ms >= lead_ms - WARNING_LATE_S * 1_000


def meaning_of(
    name: str,
    job: SlurmJob | None,
    *,
    run: Run,
    limits: SlurmLimits,
    grace_ms: int,
    warning: Warned,
    signalled_unix_ms: int,
    shortened: bool = False,
    grace_end_unix_s: int | None = None,
) -> Meaning | None:
    """What the signal of that name means. None: the end in the job's record says it all."""
    killed_by = killed_by_unix_ms(
        signalled_unix_ms=signalled_unix_ms, limits=limits, grace_ms=grace_ms
    )
    if job is None:  # SIGTERM may well be followed by SIGKILL
        deadline = killed_by if name == "SIGTERM" else None
        return Meaning(
            cause=Cause.UNKNOWN, deadline_unix_ms=deadline, detail="no record to compare"
        )
    detail = _described(job)
    if job.restarts > run.restarts:
        return Meaning(cause=Cause.REQUEUE, deadline_unix_ms=killed_by, detail=detail)
    if job.ending:
        cause = ending_cause(job, grace_end_unix_s=grace_end_unix_s)
        return Meaning(cause=cause, deadline_unix_ms=killed_by, detail=detail)
    left_ms = None
    if job.end_unix_s is not None:
        left_ms = job.end_unix_s * 1_000 - signalled_unix_ms
        if left_ms <= 0:
            cause = Cause.TIME_LIMIT if job.preempt_unix_s is None else Cause.PREEMPTION
            return Meaning(cause=cause, deadline_unix_ms=killed_by, detail=detail)
        if job.preempt_unix_s is not None:
            return None
        if warning.explains(name, job, left_ms=left_ms, shortened=shortened):
            return None
    deadline = signalled_unix_ms + (grace_ms if left_ms is None else min(grace_ms, left_ms))
    detail = f"nothing in the job's record explains it: {detail}"
    return Meaning(cause=Cause.UNKNOWN, deadline_unix_ms=deadline, detail=detail, assumed=True)


NODE_STATES = {
    Cause.NODE_FAILING: ("FAIL", "FAILING"),
    Cause.NODE_REBOOT: ("REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
    Cause.NODE_DRAIN: ("DRAIN", "DRAINED", "DRAINING"),
}
"""By cause, the gravest first: a node that reboots as soon as it is free is drained, too."""


def leaving_nodes(nodes: tuple[SlurmNode, ...]) -> tuple[Observed, ...]:
    """Slurm lets jobs finish on such nodes: no deadline."""
    found: dict[Cause, list[SlurmNode]] = {}
    for node in nodes:
        if node.reason.startswith(OWN_REASON):
            continue
        for cause, states in NODE_STATES.items():
            if node.states & set(states):
                found.setdefault(cause, []).append(node)
                break
    return tuple(_leaving(cause, tuple(hit)) for cause, hit in found.items())


def _leaving(cause: Cause, nodes: tuple[SlurmNode, ...]) -> Observed:
    return Observed(
        key=cause.replace("_", "-"),
        cause=cause,
        notice_class=NoticeClass.SOFT,
        detail="; ".join(f"{n.name}: {n.reason}" if n.reason else n.name for n in nodes),
        nodes=tuple(n.name for n in nodes),
    )


def maintenance_of(
    reservations: tuple[SlurmReservation, ...], *, nodes: frozenset[str], now_unix_ms: int
) -> tuple[Observed, ...]:
    """Reservations for maintenance of our nodes. Slurm lets jobs run into them; the maintenance
    does not."""
    return tuple(
        Observed(
            key=f"maintenance/{one.name}",
            cause=Cause.HOST_MAINTENANCE,
            notice_class=NoticeClass.SOFT,
            stated_unix_ms=one.start_unix_s * 1_000,
            detail=f"maintenance reservation {one.name} begins",
            nodes=tuple(sorted(one.nodes & nodes)),
        )
        for one in reservations
        if "MAINT" in one.flags
        and one.nodes & nodes
        and one.start_unix_s is not None
        and (one.end_unix_s is None or one.end_unix_s * 1_000 > now_unix_ms)
    )


def reservation_of(
    job: SlurmJob, reservations: tuple[SlurmReservation, ...], *, now_unix_ms: int
) -> Observed | None:
    """A run in a reservation ends with it, whatever its own limit says, unless it is a FLEX one. A
    job may ask for several, and runs in one that has its nodes."""
    asked, nodes = job.reservation.split(","), frozenset(hosts_of(job.nodes))
    ends = [
        (one.end_unix_s, one.name)
        for one in reservations
        if one.name in asked
        and "FLEX" not in one.flags
        and one.end_unix_s is not None
        and (len(asked) == 1 or one.nodes & nodes)
    ]
    end_unix_s, name = min(ends, default=(None, ""))
    if end_unix_s is None or end_unix_s * 1_000 - now_unix_ms > NO_LIMIT_AHEAD_S * 1_000:
        return None
    return Observed(
        key="reservation",
        cause=Cause.RESERVATION_END,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=end_unix_s * 1_000,
        detail=f"reservation {name} ends",
    )


def _described(job: SlurmJob) -> str:
    said = [f"JobState={'+'.join(sorted(job.states))}", f"Restarts={job.restarts}"]
    if job.reason not in ("", "None"):
        said.append(f"Reason={job.reason}")
    if job.end_unix_s is not None:
        said.append(f"EndTime={job.end_unix_s}")
    if job.preempt_unix_s is not None:
        said.append(f"PreemptTime={job.preempt_unix_s}")
    return " ".join(said)
