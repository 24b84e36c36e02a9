"""When a job comes back: a fold over its attempts, and one decision after each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from drainfsm.core.backoff import backoff_s
from drainfsm.policy.events import Ended, PastAttempt, RestartAction, RestartDecided, Row
from drainfsm.policy.rules import RestartRules

ENDS = {
    Ended.FINISHED: (RestartAction.END, "the job has finished"),
    Ended.FAILED: (RestartAction.END, "the job failed by itself"),
    Ended.SUPERSEDED: (RestartAction.END, "a newer attempt has taken the job over"),
    Ended.NO_PROGRESS: (
        RestartAction.HOLD,
        "its attempts make no progress beyond the checkpoint that they began with",
    ),
}


def is_healthy(attempt: PastAttempt, rules: RestartRules) -> bool:
    """It lived long enough, and is not known to have committed nothing new."""
    return attempt.lived_ms >= rules.healthy_s * 1_000 and attempt.progressed is not False


def with_attempt(row: Row, attempt: PastAttempt, rules: RestartRules) -> Row:
    """The row with one more at its end; a healthy attempt begins a new one."""
    before = Row() if is_healthy(attempt, rules) else row
    return Row(
        preemption_count=before.preemption_count + (attempt.ended is Ended.PREEMPTED),
        failure_count=before.failure_count + (attempt.ended is Ended.LOST),
    )


def row_of(decisions: Sequence[RestartDecided]) -> Row:
    """Where the job stands after these, in the order in which they were made. If it is started
    again after it was held, or had ended, somebody has looked at it: a new row begins."""
    last = decisions[-1] if decisions else None
    return last.row if last and last.action is RestartAction.RESTART else Row()


def chance_of(job_id: str, epoch: int) -> float:
    """From 0 to 1: the same for the same attempt wherever it is computed, and different between
    jobs."""
    return zlib.crc32(f"{job_id}/{epoch}".encode()) / 2**32


def longest_pause_s(row: Row, ended: Ended, rules: RestartRules) -> float:
    """Before chance shortens it: never shorter after one more, and at most ``pause_s_max``."""
    if ended is Ended.PREEMPTED:
        further = max(0, row.preemption_count - rules.free_preemptions)
        return backoff_s(further + 1, first_s=rules.pause_s, longest_s=rules.pause_s_max)
    return backoff_s(row.failure_count, first_s=rules.pause_s, longest_s=rules.pause_s_max)


def decide_restart(
    row: Row,
    attempt: PastAttempt,
    rules: RestartRules,
    *,
    job_id: str,
    chance: float,
    now_unix_ms: int,
) -> RestartDecided:
    """``row``: what ended before this attempt."""
    after = with_attempt(row, attempt, rules)
    action, reason, pause_ms = _judge(after, attempt, rules, chance)
    return RestartDecided(
        at_unix_ms=now_unix_ms,
        reason=reason,
        job_id=job_id,
        attempt=attempt,
        before=row,
        row=after,
        rules=rules,
        chance=chance,
        action=action,
        pause_ms=pause_ms,
    )


def decide_after(
    attempts: Sequence[PastAttempt], rules: RestartRules, *, job_id: str, now_unix_ms: int
) -> RestartDecided:
    """Decide about the last of these: all that have ended, oldest first, at least one."""
    decided: list[RestartDecided] = []
    for attempt in attempts:
        decided.append(
            decide_restart(
                row_of(decided),
                attempt,
                rules,
                job_id=job_id,
                chance=chance_of(job_id, attempt.epoch),
                now_unix_ms=now_unix_ms,
            )
        )
    return decided[-1]


def recompute(decision: RestartDecided) -> bool:
    """Whether its inputs give the same decision again."""
    again = decide_restart(
        decision.before,
        decision.attempt,
        decision.rules,
        job_id=decision.job_id,
        chance=decision.chance,
        now_unix_ms=decision.at_unix_ms,
    )
    return again == decision


def _judge(
    row: Row, attempt: PastAttempt, rules: RestartRules, chance: float
) -> tuple[RestartAction, str, int]:
    if attempt.ended in ENDS:
        action, reason = ENDS[attempt.ended]
        return action, reason, 0
    if row.preemption_count > rules.preemptions_max:
        reason = f"{rules.preemptions_max} preemptions in a row without a healthy attempt"
        return RestartAction.HOLD, reason, 0
    if row.failure_count > rules.failures_max:
        reason = f"{rules.failures_max} losses in a row without a healthy attempt"
        return RestartAction.HOLD, reason, 0
    longest_s = longest_pause_s(row, attempt.ended, rules)
    doubled = longest_s > rules.pause_s
    pause_s = longest_s * (1 - rules.jitter * chance) if doubled else longest_s
    preempted = attempt.ended is Ended.PREEMPTED
    count = row.preemption_count if preempted else row.failure_count
    what = "preemption" if preempted else "loss"
    reason = f"{what} {count} in a row"
    if is_healthy(attempt, rules):
        reason += ", after a healthy attempt"
    return RestartAction.RESTART, reason, round(pause_s * 1_000)
