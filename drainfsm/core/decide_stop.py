"""Decisions from the first notice until every rank holds at one step."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import UnsetType

from drainfsm.core import decide_save as saving
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import STEPS_TO_RUN, Budget
from drainfsm.core.deadline import (
    budget_of,
    last_quiesce_unix_ms,
    latest_safe_start_unix_ms,
    notice_deadline_unix_ms,
    quiesce_by_unix_ms,
    wait_until_unix_ms,
)
from drainfsm.core.draft import Draft, reject
from drainfsm.core.notice import Notice, revision_of, stated_revision
from drainfsm.core.state import Drain, HeldNotice, HoldPeriod, Phase, State, Stop, known, merge

NOT_ATTACHED = "no process called drainfsm.attach()"
"""Why a job without ranks is not saved."""


def receive_notice(draft: Draft, given: i.ReceiveNotice) -> None:
    """The first notice opens a drain; any other is recorded, and the earliest deadline wins."""
    state, notice = draft.state, given.notice
    if state.phase in (Phase.EXITED, Phase.LOST) or state.attempt.exit_code is not None:
        return
    if notice.advisory:
        draft.add(e.NoticeNoted(notice=notice))
        return
    held = draft.drain.notices.get(notice.identity) if state.phase.active else None
    if held is None and _was_taken_back(state, notice):
        return
    deadline = notice_deadline_unix_ms(
        notice, grace_ms=state.attempt.grace_ms, now_unix_ms=draft.now_unix_ms
    )
    stated = _stated_unix_ms(state, notice)
    if stated is not None and stated > deadline:
        deadline = stated
    if held is not None and _adds_nothing(draft.drain, held, notice, deadline_unix_ms=deadline):
        return
    _accept(draft, notice, deadline_unix_ms=deadline, step_ms=given.step_ms)
    if draft.state.phase is Phase.SCHEDULED:
        _due(draft)
    else:
        saving.recheck(draft)


def _stated_unix_ms(state: State, notice: Notice) -> int | None:
    """The earliest instant that a HARD notice about the same machine states: an assumed deadline
    never tightens it. None: the notice states its own, or no HARD notice does."""
    if not state.phase.active or not (notice.assumed or notice.deadline_unix_ms is None):
        return None
    stated = [
        held.earliest_unix_ms
        for held in state.current.notices.values()
        if not held.notice.revocable
        and held.notice.deadline_unix_ms is not None
        and not held.notice.assumed
        and _same_machine(state, held.notice, notice)
    ]
    return min(stated, default=None)


def _same_machine(state: State, one: Notice, other: Notice) -> bool:
    if state.attempt.node_count == 1:
        return True
    if one.nodes or other.nodes:
        return bool(set(one.nodes) & set(other.nodes))
    return not isinstance(one.heard_by, UnsetType) and one.heard_by == other.heard_by


def _was_taken_back(state: State, notice: Notice) -> bool:
    """A late repeat of a notice that its source has withdrawn since, in a drain that is over."""
    return notice.revocable and revision_of(notice.revision) <= state.attempt.withdrawn.get(
        notice.identity, 0
    )


def _adds_nothing(drain: Drain, held: HeldNotice, notice: Notice, *, deadline_unix_ms: int) -> bool:
    merged = merge(
        held,
        notice,
        deadline_unix_ms=deadline_unix_ms,
        withdrawn_revision=held.withdrawn_revision,
    )
    return merged == held and notice.clock_skew_ms <= drain.clock_skew_ms


def _accept(draft: Draft, notice: Notice, *, deadline_unix_ms: int, step_ms: int) -> None:
    state, now = draft.state, draft.now_unix_ms
    attempt, drain = state.attempt, state.drain if state.phase.active else None
    before = None if drain is None else drain.deadline_unix_ms
    effective = deadline_unix_ms if before is None else min(before, deadline_unix_ms)
    known_skew = attempt.allowances.clock_skew_ms if drain is None else drain.clock_skew_ms
    skew = max(known_skew, notice.clock_skew_ms)
    budget = budget_of(
        state, now_unix_ms=now, deadline_unix_ms=effective, clock_skew_ms=skew, step_ms=step_ms
    )
    act_at = now
    if notice.revocable:
        act_at = latest_safe_start_unix_ms(
            budget, schedule_slack_ms=attempt.allowances.schedule_slack_ms
        )
    number = state.drain_count + 1 if drain is None else drain.number
    draft.add(
        e.NoticeReceived(
            drain_id=f"{attempt.job_id}/{attempt.epoch}/{number}",
            notice=notice,
            deadline_unix_ms=deadline_unix_ms,
            effective_deadline_unix_ms=effective,
            act_at_unix_ms=act_at,
            budget=budget,
            step_ms=step_ms,
        )
    )
    if before is not None and deadline_unix_ms < before:
        draft.add(
            e.DeadlineShortened(
                source=notice.source,
                native_id=notice.native_id,
                from_unix_ms=before,
                to_unix_ms=deadline_unix_ms,
                act_at_unix_ms=act_at,
                budget=budget,
            )
        )


def _due(draft: Draft) -> None:
    """A scheduled drain acts as soon as a HARD notice is in it, or its time has come."""
    state, now = draft.state, draft.now_unix_ms
    if draft.drain.has_hard_notice:
        reason = "hard notice"
    elif now >= draft.drain.act_at_unix_ms:
        reason = "latest safe start"
    else:
        return
    draft.add(e.DrainDue(reason=reason, budget=budget_of(state, now_unix_ms=now)))


def withdraw_notice(draft: Draft, given: i.WithdrawNotice) -> None:
    """SOFT notices can be taken back; with the last of them the drain is called off."""
    state = draft.state
    if not state.phase.active:
        return
    held = draft.drain.notices.get(f"{given.source}/{given.native_id}")
    if held is None or given.revision <= held.withdrawn_revision:
        return
    if not held.notice.revocable:
        raise reject(state, given, f"{held.notice.identity} is HARD and cannot be withdrawn")
    draft.add(
        e.NoticeWithdrawn(
            source=given.source,
            native_id=given.native_id,
            revision=stated_revision(given.revision),
            reason=given.reason,
        )
    )
    if draft.drain.all_withdrawn and state.phase in (Phase.SCHEDULED, Phase.NOTICED):
        draft.add(e.DrainCancelled(reason=given.reason or "every notice was withdrawn"))


def report_cordon(draft: Draft, given: i.ReportCordon) -> None:
    """The notice has been handled: evaluate the rule, then ask the ranks to stop."""
    state, now = draft.state, draft.now_unix_ms
    if not _of_this_drain(state, given.drain_id):
        return
    if state.phase.over or (state.drain is not None and state.drain.cordon is not None):
        return
    if state.phase not in (Phase.NOTICED, Phase.LEAVING):
        raise reject(state, given, "no cordon was asked for")
    budget, steps_ms = budget_of(state, now_unix_ms=now), STEPS_TO_RUN * state.current.step_ms
    quiesce_ms = max(state.attempt.allowances.quiesce_ms, steps_ms)
    draft.add(
        e.NodeCordoned(
            outcome=given.outcome,
            duration_ms=given.duration_ms,
            detail=given.detail,
            quiesce_by_unix_ms=quiesce_by_unix_ms(budget, quiesce_ms=quiesce_ms),
            budget=budget,
        )
    )
    if draft.state.phase is not Phase.NOTICED:
        return
    if not budget.fits:
        saving.skip(draft, saving.does_not_fit(budget), budget=budget)
    elif not given.attached:
        saving.skip(draft, NOT_ATTACHED, budget=budget)


def report_positions(draft: Draft, given: i.ReportPositions) -> None:
    """Every rank is held at its next boundary: the stop step is the highest step + 1."""
    state = draft.state
    if not _of_this_drain(state, given.drain_id):
        return
    if state.phase is not Phase.NOTICED:
        if state.phase is Phase.IDLE or state.phase is Phase.SCHEDULED:
            raise reject(state, given, "no rank was asked to hold")
        return
    hold = draft.drain.hold
    if hold is None:
        raise reject(state, given, "the cordon comes before ranks are asked to stop")
    _require_world(state, given)
    stop_step = max(position.max_step for position in given.positions) + 1
    budget = budget_of(state, now_unix_ms=draft.now_unix_ms)
    reason = _unreachable(given.positions, hold, stop_step=stop_step, budget=budget)
    if reason:
        saving.skip(draft, reason, budget=budget)
        return
    run_ms = max(_run_ms(position, stop_step) for position in given.positions)
    draft.add(
        e.StopStepAgreed(
            stop_step=stop_step,
            world_size=state.attempt.world_size,
            nodes=tuple(
                e.NodeSteps(node=p.node, ranks=p.ranks, min_step=p.min_step, max_step=p.max_step)
                for p in sorted(given.positions, key=lambda p: p.node)
            ),
            step_ms=max(position.step_ms for position in given.positions),
            accumulation=given.accumulation,
            quiesce_by_unix_ms=max(
                hold.quiesce_by_unix_ms, quiesce_by_unix_ms(budget, quiesce_ms=run_ms)
            ),
            budget=budget,
        )
    )


def _of_this_drain(state: State, drain_id: str) -> bool:
    """False: the answer belongs to a drain that was called off. Empty: the present one."""
    return not drain_id or (state.drain is not None and state.drain.drain_id == drain_id)


def _require_world(state: State, given: i.ReportPositions) -> None:
    ranks = sorted(rank for position in given.positions for rank in position.ranks)
    world_size = state.attempt.world_size
    if ranks != list(range(world_size)) or not ranks:
        raise reject(state, given, f"positions of {len(ranks)} rank(s), world of {world_size}")
    if len({position.node for position in given.positions}) != len(given.positions):
        raise reject(state, given, "two positions of one node")


def _run_ms(position: i.NodePosition, stop_step: int) -> int:
    """Time to the end of the stop step by the node's known steps and phases, plus a quarter."""
    known_ms = (position.busy_for_ms or 0) + (stop_step - position.min_step) * position.step_ms
    return known_ms * 5 // 4


def _unreachable(
    positions: tuple[i.NodePosition, ...],
    hold: HoldPeriod,
    *,
    stop_step: int,
    budget: Budget,
) -> str:
    """Why the stop step cannot be reached in time; empty if it can, as far as is known."""
    if not budget.fits:
        return saving.does_not_fit(budget)
    late_ms = budget.now_unix_ms - hold.quiesce_by_unix_ms
    if late_ms >= 0:
        return f"the last rank reported its step {late_ms} ms after the wait for it had ended"
    left_ms = last_quiesce_unix_ms(budget) - budget.now_unix_ms
    for position in positions:
        if position.busy_for_ms is not None and position.busy_for_ms >= left_ms:
            return (
                f"rank {position.busy_rank} is in {position.busy_phase} for another "
                f"{position.busy_for_ms} ms: cannot quiesce within {left_ms} ms"
            )
        to_run = stop_step - position.min_step
        if to_run * position.step_ms >= left_ms:
            return (
                f"node {position.node} needs {to_run} step(s) of {position.step_ms} ms: "
                f"cannot quiesce within {left_ms} ms"
            )
    return ""


def report_quiesced(draft: Draft, given: i.ReportQuiesced) -> None:
    """One node's ranks hold at the agreed step; with the last node the save is decided."""
    state, stop = draft.state, draft.state.stop
    if stop is None:
        raise reject(state, given, "no stop step is agreed")
    if state.phase is not Phase.QUIESCING:
        return
    if given.step != stop.step:
        raise reject(state, given, f"step {given.step} is not the agreed step {stop.step}")
    ranks = _expected_ranks(stop, given.node)
    if ranks != given.ranks:
        raise reject(state, given, f"node {given.node} has ranks {ranks}")
    if given.node not in stop.waiting:
        return
    draft.add(e.RankQuiesced(node=given.node, ranks=given.ranks, step=given.step))
    if known(draft.state.stop).waiting:
        return
    draft.add(
        e.RanksQuiesced(
            step=given.step, rank_count=state.attempt.world_size, quiesce_ms=draft.waited_ms
        )
    )
    saving.decide_save(draft)


def _expected_ranks(stop: Stop, node: int) -> tuple[int, ...] | None:
    """None: the node is not expected."""
    at = bisect_left(stop.nodes, node, key=lambda steps: steps.node)
    found = stop.nodes[at : at + 1]
    return found[0].ranks if found and found[0].node == node else None


def expire(draft: Draft, missing: tuple[e.MissingRank, ...]) -> None:
    """The wait for the ranks is over: name the missing ones, and save nothing."""
    state, now = draft.state, draft.now_unix_ms
    if state.phase not in (Phase.NOTICED, Phase.QUIESCING):
        return
    if now < wait_until_unix_ms(state):
        return
    if draft.drain.hold is not None:
        draft.add(e.QuiesceTimedOut(missing=missing, waited_ms=draft.waited_ms))
    names = ", ".join(f"{m.name} ({m.phase})" for m in missing[:8]) or "unknown ranks"
    saving.give_up(draft, f"{names} did not stop in time")
