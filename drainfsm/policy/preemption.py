"""Who makes room for whom: a pure function for any scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from drainfsm.core.text import span
from drainfsm.errors import ConfigError
from drainfsm.policy.events import PreemptionDecided, Running, Spared, Waiting
from drainfsm.policy.rules import PreemptionRules


def decide_preemption(
    waiting: Waiting,
    running: Sequence[Running],
    rules: PreemptionRules,
    *,
    free_capacity: int,
    now_unix_ms: int,
) -> PreemptionDecided:
    """Chooses victims only if the job can start then: the lowest tier first, and in a tier those
    with the least work at risk. No more of them than it needs.

    Raises:
        ConfigError: a tier that the rules do not have, a capacity that is none, or a job that is
            listed twice.
    """
    _check(waiting, running, rules)
    eligible: list[Running] = []
    spared: list[Spared] = []
    for job in running:
        why = protection(job, waiting, rules, now_unix_ms=now_unix_ms)
        if why:
            spared.append(Spared(job_id=job.job_id, reason=why))
        else:
            eligible.append(job)
    chosen = _choose(waiting.capacity - free_capacity, eligible, rules)
    taken = {job.job_id for job in chosen}
    why = "not needed" if chosen or free_capacity >= waiting.capacity else "it would not be enough"
    spared += [Spared(job_id=job.job_id, reason=why) for job in eligible if job.job_id not in taken]
    return PreemptionDecided(
        at_unix_ms=now_unix_ms,
        reason=_reason(waiting, chosen, free_capacity=free_capacity),
        waiting=waiting,
        free_capacity=free_capacity,
        running=tuple(running),
        rules=rules,
        victims=tuple(job.job_id for job in chosen),
        spared=tuple(spared),
        exempted=tuple(
            job.job_id for job in chosen if _minimum_left_ms(job, rules, now_unix_ms=now_unix_ms)
        ),
    )


def _check(waiting: Waiting, running: Sequence[Running], rules: PreemptionRules) -> None:
    rules.tier(waiting.tier)
    if waiting.capacity < 1:
        raise ConfigError(f"{waiting.job_id} wants a capacity of {waiting.capacity}")
    seen: set[str] = set()
    for job in running:
        rules.tier(job.tier)
        if job.capacity < 0:
            raise ConfigError(f"{job.job_id} holds a capacity of {job.capacity}")
        if job.job_id in seen:
            raise ConfigError(f"{job.job_id} is listed twice")
        seen.add(job.job_id)


def recompute(decision: PreemptionDecided) -> bool:
    """Whether its inputs give the same decision again."""
    try:
        again = decide_preemption(
            decision.waiting,
            decision.running,
            decision.rules,
            free_capacity=decision.free_capacity,
            now_unix_ms=decision.at_unix_ms,
        )
    except (ConfigError, OverflowError):  # it could not be made today; a year of 300 digits
        return False
    return again == decision


def protection(job: Running, waiting: Waiting, rules: PreemptionRules, *, now_unix_ms: int) -> str:
    """Why ``waiting`` may not preempt the job; empty: it may."""
    if job.job_id == waiting.job_id:
        return "it is the one that waits"
    if job.tier not in rules.victims_of(waiting.tier):
        return f"tier {waiting.tier} does not preempt tier {job.tier}"
    quota_ms = rules.quota_s * 1_000  # before and after: a clock may have been set back since
    recent = [at for at in job.evicted_unix_ms if abs(now_unix_ms - at) < quota_ms]
    if len(recent) >= rules.evictions_max:
        return f"evicted {len(recent)} times within {span(round(rules.quota_s * 1_000))} already"
    left_ms = _minimum_left_ms(job, rules, now_unix_ms=now_unix_ms)
    if left_ms and not waiting.exemption and not rules.tier(waiting.tier).ignores_minimum:
        return f"{span(left_ms)} of its minimum run time left"
    return ""


def _minimum_left_ms(job: Running, rules: PreemptionRules, *, now_unix_ms: int) -> int:
    ran_ms = max(0, now_unix_ms - job.started_unix_ms)
    return max(0, round(rules.minimum_run_s * 1_000) - ran_ms)


def _choose(needed: int, eligible: Sequence[Running], rules: PreemptionRules) -> list[Running]:
    if needed <= 0 or sum(job.capacity for job in eligible) < needed:
        return []
    names = [tier.name for tier in rules.tiers]
    order = sorted(eligible, key=lambda job: (-names.index(job.tier), job.at_risk_ms, job.job_id))
    chosen: list[Running] = []
    freed = 0
    for job in order:
        if freed < needed:
            chosen.append(job)
            freed += job.capacity
    kept: list[Running] = []
    for job in chosen:
        if freed - job.capacity >= needed:  # a larger one was chosen after it
            freed -= job.capacity
        else:
            kept.append(job)
    return kept


def _reason(waiting: Waiting, chosen: Sequence[Running], *, free_capacity: int) -> str:
    if chosen:
        exempt = f" (exempt from minimum run times: {waiting.exemption})"
        return f"{len(chosen)} job(s) make room for {waiting.job_id}" + (
            exempt if waiting.exemption else ""
        )
    if free_capacity >= waiting.capacity:
        return "there is room already"
    return f"no job may be preempted for {waiting.job_id}, or it would not be enough"
