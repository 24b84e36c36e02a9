"""Instants that follow from a drain's deadline. They move earlier with it, never later."""

from __future__ import annotations

from drainfsm.core.budget import Budget, Stage, evaluate
from drainfsm.core.exit_plan import ExitPlan, exit_plan
from drainfsm.core.notice import Notice
from drainfsm.core.state import Attempt, Phase, State
from drainfsm.errors import NoticeRejectedError

AHEAD_MAX_MS = 366 * 24 * 3_600_000
"""A deadline further ahead than this is a mistake (or Slurm's way of saying "no limit")."""

PAST_MAX_MS = 24 * 3_600_000
"""A HARD deadline further in the past than this is a mistake; a nearer one is a late notice."""


def notice_deadline_unix_ms(notice: Notice, *, grace_ms: int, now_unix_ms: int) -> int:
    """The deadline that the notice states, or the job's grace from when it was heard.

    Raises:
        NoticeRejectedError: it lies more than a year ahead, or so far in the past that it cannot
            be acted on (any past for a SOFT notice, a day for a HARD one).
    """
    deadline = notice.deadline_unix_ms
    if deadline is None:
        deadline = notice.received_unix_ms + grace_ms
    ahead_ms = deadline - now_unix_ms
    if ahead_ms > AHEAD_MAX_MS:
        raise NoticeRejectedError(
            f"notice {notice.identity}: its deadline is {ahead_ms // 86_400_000} days ahead; "
            "more than a year is taken for a mistake, state the real one"
        )
    if ahead_ms < -PAST_MAX_MS or (notice.revocable and ahead_ms <= 0):
        raise NoticeRejectedError(
            f"notice {notice.identity}: its deadline is {-ahead_ms / 1_000:.1f} s in the past; "
            "state one ahead, and check the clocks of source and node"
        )
    return deadline


def stage_of(state: State) -> Stage:
    """Which terms of the rule are still to come."""
    match state.phase:
        case Phase.QUIESCING | Phase.QUIESCED:
            return Stage.QUIESCED
        case Phase.SAVING | Phase.STAGED:
            return Stage.SAVING
        case Phase.DURABLE | Phase.PUBLISHED | Phase.LEAVING:
            return Stage.DURABLE
        case Phase.NOTICED if state.current.hold is not None:
            return Stage.QUIESCED
        case _:
            return Stage.NOTICE


def budget_of(
    state: State,
    *,
    now_unix_ms: int,
    deadline_unix_ms: int | None = None,
    clock_skew_ms: int | None = None,
    stage: Stage | None = None,
    step_ms: int = 0,
) -> Budget:
    """The rule for the drain as it stands, or for the deadline of a notice that is about to be
    adopted."""
    attempt = state.attempt
    if deadline_unix_ms is None:
        deadline_unix_ms = state.current.deadline_unix_ms
    if clock_skew_ms is None:
        clock_skew_ms = state.current.clock_skew_ms
    return evaluate(
        stage=stage_of(state) if stage is None else stage,
        now_unix_ms=now_unix_ms,
        deadline_unix_ms=deadline_unix_ms,
        clock_skew_ms=clock_skew_ms,
        allowances=attempt.allowances,
        samples=attempt.samples,
        load=attempt.load,
        step_ms=max(step_ms, 0 if state.drain is None else state.drain.step_ms),
    )


def window_budget(attempt: Attempt, *, step_ms: int) -> Budget:
    """The rule for a notice with the configured grace. It tells before any notice whether a drain
    of this job could save."""
    return evaluate(
        stage=Stage.NOTICE,
        now_unix_ms=0,
        deadline_unix_ms=attempt.grace_ms,
        clock_skew_ms=attempt.allowances.clock_skew_ms,
        allowances=attempt.allowances,
        samples=attempt.samples,
        load=attempt.load,
        step_ms=step_ms,
    )


def latest_safe_start_unix_ms(budget: Budget, *, schedule_slack_ms: int) -> int:
    """When a drain must begin so that a save fits, with slack; never before now."""
    latest = budget.deadline_unix_ms - budget.clock_skew_ms - budget.needed_ms
    return max(budget.now_unix_ms, latest - schedule_slack_ms)


def quiesce_by_unix_ms(budget: Budget, *, quiesce_ms: int) -> int:
    """End of the wait for the ranks, cut short where the save would no longer fit."""
    return min(budget.now_unix_ms + quiesce_ms, last_quiesce_unix_ms(budget))


def last_quiesce_unix_ms(budget: Budget) -> int:
    """When all ranks must hold for a save still to fit."""
    durable = budget.durable.value_ms if budget.durable else 0
    commit = budget.commit.value_ms if budget.commit else 0
    usable = budget.deadline_unix_ms - budget.clock_skew_ms
    return usable - durable - commit - budget.exit_margin_ms


def durable_by_unix_ms(state: State) -> int:
    """Latest instant at which the bytes must be durable for the commit still to fit."""
    budget = budget_of(state, now_unix_ms=0)
    return state.current.usable_deadline_unix_ms - budget.needed_ms


def exit_plan_of(state: State, *, asked_unix_ms: int | None = None) -> ExitPlan:
    """The drain's exit plan. ``asked_unix_ms``: when its ranks were asked to leave, if they
    were."""
    return exit_plan(
        usable_deadline_unix_ms=state.current.usable_deadline_unix_ms,
        exit_margin_ms=state.attempt.allowances.exit_margin_ms,
        asked_unix_ms=asked_unix_ms,
    )


def kill_by_unix_ms(state: State, *, asked_unix_ms: int) -> int:
    """When agents kill what has not left. A job that has not attached saves by itself, if at all:
    it has until the exit margin begins."""
    plan = exit_plan_of(state, asked_unix_ms=asked_unix_ms)
    attached = state.attempt.world_size > 0
    return plan.kill_by_unix_ms if attached else plan.leave_by_unix_ms


def wait_until_unix_ms(state: State) -> int:
    """End of the wait for the ranks to hold, and to reach the stop step. Before they are asked to:
    the last instant at which they can still be asked to leave."""
    hold = state.current.hold
    return exit_plan_of(state).leave_by_unix_ms if hold is None else hold.quiesce_by_unix_ms


def next_wake_unix_ms(state: State) -> int | None:
    """When the core wants a ``Tick``; None: time alone changes nothing."""
    match state.phase:
        case Phase.SCHEDULED:
            return state.current.act_at_unix_ms
        case Phase.NOTICED | Phase.QUIESCING:
            return wait_until_unix_ms(state)
        case Phase.SAVING | Phase.STAGED:
            return durable_by_unix_ms(state)
        case Phase.QUIESCED | Phase.DURABLE:
            return exit_plan_of(state).leave_by_unix_ms
        case Phase.PUBLISHED | Phase.LEAVING:
            return state.current.usable_deadline_unix_ms
        case _:
            return None
