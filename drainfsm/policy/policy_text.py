"""Rules and decisions as plain text, each decision with its inputs and recomputed from them."""

from __future__ import annotations

from collections.abc import Iterator

from drainfsm.core.text import printable, span
from drainfsm.policy import preemption, restarts
from drainfsm.policy.events import (
    CascadeDetected,
    Decision,
    PreemptionDecided,
    RestartAction,
    RestartDecided,
)
from drainfsm.policy.rules import Rules, slurm_settings

NOT_AGAIN = "WARNING: recomputed from these inputs, the decision differs"


def explain_decision(decision: Decision) -> Iterator[str]:
    match decision:
        case RestartDecided():
            yield from _restart(decision)
        case PreemptionDecided():
            yield from _preemption(decision)
        case CascadeDetected():
            kind = "circle" if decision.cycle else "cascade"
            took_ms = decision.chain[-1].at_unix_ms - decision.chain[0].at_unix_ms
            yield f"A {kind} of {len(decision.chain)} evictions within {span(took_ms)}:"
            yield f"  {printable(decision.reason)}"


def _restart(decision: RestartDecided) -> Iterator[str]:
    attempt, row, rules = decision.attempt, decision.row, decision.rules
    which = f"attempt {attempt.epoch}" if attempt.epoch else "an attempt that never claimed the job"
    what = {
        RestartAction.RESTART: f"the next attempt starts after {span(decision.pause_ms)}",
        RestartAction.HOLD: "the job is held until somebody has looked at it",
        RestartAction.END: "nothing is started again",
    }
    yield f"After {which}: {what[decision.action]}, {decision.reason}."
    progress = {None: "", True: ", committed something new", False: ", committed nothing new"}
    cause = f" ({printable(attempt.cause)})" if attempt.cause else ""
    yield (
        f"  it ended: {attempt.ended}{cause} after {span(attempt.lived_ms)}"
        f"{progress[attempt.progressed]}"
    )
    yield (
        f"  in a row: {row.preemption_count} of {rules.preemptions_max} preemptions, "
        f"{row.failure_count} of {rules.failures_max} losses "
        f"(healthy: {span(round(rules.healthy_s * 1_000))} and something new)"
    )
    if decision.action is RestartAction.RESTART:
        longest_ms = round(restarts.longest_pause_s(row, attempt.ended, rules) * 1_000)
        yield (
            f"  pause: {span(longest_ms)}, of which chance ({decision.chance:.2f}) may take off "
            f"{rules.jitter:.0%} where it has doubled; at most {rules.pause_s_max:g} s"
        )
    if not restarts.recompute(decision):
        yield f"  {NOT_AGAIN}"


def _preemption(decision: PreemptionDecided) -> Iterator[str]:
    waiting = decision.waiting
    yield (
        f"{printable(waiting.job_id)} (tier {printable(waiting.tier)}) wants {waiting.capacity}, "
        f"{decision.free_capacity} are free: {printable(decision.reason)}."
    )
    victims, exempted = set(decision.victims), set(decision.exempted)
    for job in decision.running:
        if job.job_id in victims:
            exempt = ", within its minimum run time" if job.job_id in exempted else ""
            yield (
                f"  {printable(job.job_id)} (tier {printable(job.tier)}, {job.capacity}) "
                f"leaves{exempt}; work at risk {span(job.at_risk_ms)}"
            )
    for spared in decision.spared:
        yield f"  {printable(spared.job_id)} stays: {printable(spared.reason)}"
    if not preemption.recompute(decision):
        yield f"  {NOT_AGAIN}"


def rules_text(rules: Rules) -> Iterator[str]:
    preempt, restart, cascade = rules.preemption, rules.restart, rules.cascade
    yield "Who may preempt whom"
    for tier in preempt.tiers:
        victims = ", ".join(preempt.victims_of(tier.name)) or "nobody"
        early = ", also within their minimum run time" if tier.ignores_minimum else ""
        yield f"  {tier.name:14}{victims}{early}"
    yield ""
    minimum = span(round(preempt.minimum_run_s * 1_000))
    quota = span(round(preempt.quota_s * 1_000))
    most = f"at most {preempt.evictions_max} evictions of one job in {quota}"
    yield f"Minimum run time {minimum}; {most}"
    yield (
        f"Restart after {restart.pause_s:g} s; from preemption {restart.free_preemptions + 1} in a "
        f"row, and loss 2, twice as long each time, at most {restart.pause_s_max:g} s, less up to "
        f"{restart.jitter:.0%} by chance"
    )
    yield (
        f"Held after {restart.preemptions_max} preemptions or {restart.failures_max} losses in a "
        f"row; {restart.healthy_s:g} s with something new committed end the row"
    )
    yield (
        f"Cascade: {cascade.hops} evictions in a chain within {cascade.window_s:g} s, or a circle; "
        f"thrashing: more than {cascade.thrash_max:g} of the time trained goes into starting and "
        "draining"
    )
    yield ""
    yield "The same in Slurm (slurm.conf, and one QOS a tier)"
    for line in slurm_settings(preempt):
        yield f"  {line}"
