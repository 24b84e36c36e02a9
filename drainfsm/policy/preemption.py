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
        ConfigError: a tier that the rules do not have.
    """
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
    except (ConfigError, OverflowError):  # a tier that its rules do not have, a year of 300 digits
        return False
    return again == decision


def protection(job: Running, waiting: Waiting, rules: PreemptionRules, *, now_unix_ms: int) -> str:
    """Why ``waiting`` may not preempt the job; empty: it may."""
    if job.tier not in rules.victims_of(waiting.tier):
        rules.tier(job.tier)
        return f"tier {waiting.tier} does not preempt tier {job.tier}"
    since = now_unix_ms - rules.quota_s * 1_000
    recent = [at for at in job.evicted_unix_ms if at > since]
    if len(recent) >= rules.evictions_max:
        return f"evicted {len(recent)} times within {span(round(rules.quota_s * 1_000))} already"
    left_ms = _minimum_left_ms(job, rules, now_unix_ms=now_unix_ms)
    if left_ms and not waiting.exemption and not rules.tier(waiting.tier).ignores_minimum:
        return f"{span(left_ms)} of its minimum run time left"
    return ""


def _minimum_left_ms(job: Running, rules: PreemptionRules, *, now_unix_ms: int) -> int:
    ran_ms = now_unix_ms - job.started_unix_ms
    return max(0, round(rules.minimum_run_s * 1_000) - ran_ms)


def _choose(needed: int, eligible: Sequence[Running], rules: PreemptionRules) -> list[Running]:
    if needed <= 0 or sum(job.capacity for job in eligible) < needed:
        return []
    names = [tier.name for tier in rules.tiers]
    order = sorted(eligible, key=lambda job: (-names.index(job.tier), job.at_risk_ms, job.job_id))
    chosen: list[Running] = []
    for job in order:
        if sum(one.capacity for one in chosen) < needed:
            chosen.append(job)
    for job in list(chosen):  # no longer needed, since a larger one was chosen after it
        if sum(one.capacity for one in chosen) - job.capacity >= needed:
            chosen.remove(job)
    return chosen


def _reason(waiting: Waiting, chosen: Sequence[Running], *, free_capacity: int) -> str:
    if chosen:
        exempt = f" (exempt from minimum run times: {waiting.exemption})"
        return f"{len(chosen)} job(s) make room for {waiting.job_id}" + (
            exempt if waiting.exemption else ""
        )
    if free_capacity >= waiting.capacity:
        return "there is room already"
    return f"no job may be preempted for {waiting.job_id}, or it would not be enough"
