"""Decisions from the first notice until every rank holds at one step."""

from __future__ import annotations

from bisect import bisect_left

from drainfsm.core import decide_save as saving
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Budget
from drainfsm.core.deadline import (
    budget_of,
    latest_safe_start_unix_ms,
    notice_deadline_unix_ms,
    quiesce_by_unix_ms,
)
from drainfsm.core.draft import Draft, reject
from drainfsm.core.notice import Notice, NoticeClass
from drainfsm.core.state import HeldNotice, Phase, State, merge


def receive_notice(draft: Draft, given: i.ReceiveNotice) -> None:
    """The first notice opens a drain; any other is recorded, and the earliest deadline wins."""
    state, notice = draft.state, given.notice
    if state.phase in (Phase.EXITED, Phase.LOST) or state.exit_code is not None:
        return
    held = state.notices.get(notice.identity) if state.phase.active else None
    deadline = notice_deadline_unix_ms(
        notice, grace_ms=state.grace_ms, now_unix_ms=draft.now_unix_ms
    )
    if held is not None and _adds_nothing(state, held, notice, deadline_unix_ms=deadline):
        return
    _accept(draft, notice, deadline_unix_ms=deadline)
    if draft.state.phase is Phase.SCHEDULED:
        _due(draft)
    else:
        saving.recheck(draft)


def _adds_nothing(state: State, held: HeldNotice, notice: Notice, *, deadline_unix_ms: int) -> bool:
    merged = merge(held, notice, deadline_unix_ms=deadline_unix_ms)
    return merged == held and notice.clock_skew_ms <= state.clock_skew_ms


def _accept(draft: Draft, notice: Notice, *, deadline_unix_ms: int) -> None:
    state, now = draft.state, draft.now_unix_ms
    opens = not state.phase.active
    before = None if opens else state.deadline_unix_ms
    effective = deadline_unix_ms if before is None else min(before, deadline_unix_ms)
    skew = max(
        state.allowances.clock_skew_ms if opens else state.clock_skew_ms,
        notice.clock_skew_ms,
    )
    budget = budget_of(state, now_unix_ms=now, deadline_unix_ms=effective, clock_skew_ms=skew)
    act_at = now
    if notice.notice_class is NoticeClass.SOFT:
        act_at = latest_safe_start_unix_ms(
            budget, schedule_slack_ms=state.allowances.schedule_slack_ms
        )
    drain_count = state.drain_count + 1 if opens else state.drain_count
    draft.add(
        e.NoticeReceived(
            drain_id=f"{state.job_id}/{state.epoch}/{drain_count}",
            notice=notice,
            deadline_unix_ms=deadline_unix_ms,
            effective_deadline_unix_ms=effective,
            act_at_unix_ms=act_at,
            budget=budget,
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
    if state.has_hard_notice:
        reason = "hard notice"
    elif now >= state.act_at_unix_ms:
        reason = "latest safe start"
    else:
        return
    draft.add(e.DrainDue(reason=reason, budget=budget_of(state, now_unix_ms=now)))


def withdraw_notice(draft: Draft, given: i.WithdrawNotice) -> None:
    """SOFT notices can be taken back; with the last of them the drain is called off."""
    state = draft.state
    held = state.notices.get(f"{given.source}/{given.native_id}")
    if held is None or held.withdrawn or not state.phase.active:
        return
    if held.notice.notice_class is NoticeClass.HARD:
        raise reject(state, given, f"{held.notice.identity} is HARD and cannot be withdrawn")
    draft.add(
        e.NoticeWithdrawn(source=given.source, native_id=given.native_id, reason=given.reason)
    )
    if draft.state.all_withdrawn and state.phase in (Phase.SCHEDULED, Phase.NOTICED):
        draft.add(e.DrainCancelled(reason=given.reason or "every notice was withdrawn"))


def report_cordon(draft: Draft, given: i.ReportCordon) -> None:
    """The notice has been handled: evaluate the rule, then ask the ranks to stop."""
    state, now = draft.state, draft.now_unix_ms
    if given.drain_id not in ("", state.drain_id):
        return
    if state.cordon is not None or state.phase is Phase.CANCELLED or state.phase.over:
        return
    if state.phase not in (Phase.NOTICED, Phase.LEAVING):
        raise reject(state, given, "no cordon was asked for")
    budget = budget_of(state, now_unix_ms=now)
    draft.add(
        e.NodeCordoned(
            outcome=given.outcome,
            duration_ms=given.duration_ms,
            detail=given.detail,
            quiesce_by_unix_ms=quiesce_by_unix_ms(budget, quiesce_ms=state.allowances.quiesce_ms),
            budget=budget,
        )
    )
    if draft.state.phase is Phase.NOTICED and not budget.fits:
        saving.skip(draft, saving.does_not_fit(budget), budget=budget)


def report_positions(draft: Draft, given: i.ReportPositions) -> None:
    """Every rank is held at its next boundary: the stop step is the highest step + 1."""
    state = draft.state
    if given.drain_id not in ("", state.drain_id):
        return
    if state.phase is not Phase.NOTICED:
        if state.phase is Phase.IDLE or state.phase is Phase.SCHEDULED:
            raise reject(state, given, "no rank was asked to hold")
        return
    if state.hold_from_unix_ms is None:
        raise reject(state, given, "the cordon comes before ranks are asked to stop")
    _require_world(state, given)
    stop_step = max(position.max_step for position in given.positions) + 1
    budget = budget_of(state, now_unix_ms=draft.now_unix_ms)
    if reason := _unreachable(draft, given.positions, stop_step=stop_step, budget=budget):
        saving.skip(draft, reason, budget=budget)
        return
    draft.add(
        e.StopStepAgreed(
            stop_step=stop_step,
            world_size=state.world_size,
            nodes=tuple(
                e.NodeSteps(node=p.node, ranks=p.ranks, min_step=p.min_step, max_step=p.max_step)
                for p in sorted(given.positions, key=lambda p: p.node)
            ),
            step_ms=max(position.step_ms for position in given.positions),
            accumulation=given.accumulation,
            quiesce_by_unix_ms=state.quiesce_by_unix_ms,
            budget=budget,
        )
    )


def _require_world(state: State, given: i.ReportPositions) -> None:
    ranks = sorted(rank for position in given.positions for rank in position.ranks)
    if ranks != list(range(state.world_size)) or not ranks:
        raise reject(
            state,
            given,
            f"positions of {len(ranks)} rank(s), world of {state.world_size}",
        )
    if len({position.node for position in given.positions}) != len(given.positions):
        raise reject(state, given, "two positions of one node")


def _unreachable(
    draft: Draft,
    positions: tuple[i.NodePosition, ...],
    *,
    stop_step: int,
    budget: Budget,
) -> str:
    """Why the stop step cannot be reached in time; empty if it can, as far as is known."""
    if not budget.fits:
        return saving.does_not_fit(budget)
    left_ms = draft.state.quiesce_by_unix_ms - draft.now_unix_ms
    for position in positions:
        if position.busy_for_ms is not None and position.busy_for_ms > left_ms:
            return (
                f"rank {position.busy_rank} is in {position.busy_phase} for another "
                f"{position.busy_for_ms} ms: cannot quiesce within {max(0, left_ms)} ms"
            )
        to_run = stop_step - position.min_step
        if to_run * position.step_ms > left_ms:
            return (
                f"node {position.node} needs {to_run} step(s) of {position.step_ms} ms: "
                f"cannot quiesce within {max(0, left_ms)} ms"
            )
    return ""


def report_quiesced(draft: Draft, given: i.ReportQuiesced) -> None:
    """One node's ranks hold at the agreed step; with the last node the save is decided."""
    state = draft.state
    if state.phase is not Phase.QUIESCING:
        if state.stop_step is None:
            raise reject(state, given, "no stop step is agreed")
        return
    if given.step != state.stop_step:
        raise reject(state, given, f"step {given.step} is not the agreed step {state.stop_step}")
    ranks = _expected_ranks(state, given.node)
    if ranks != given.ranks:
        raise reject(state, given, f"node {given.node} has ranks {ranks}")
    if given.node in state.quiesced_nodes:
        return
    draft.add(e.RankQuiesced(node=given.node, ranks=given.ranks, step=given.step))
    if len(draft.state.quiesced_nodes) < len(state.expected):
        return
    quiesce_ms = draft.now_unix_ms - (state.hold_from_unix_ms or draft.now_unix_ms)
    draft.add(e.RanksQuiesced(step=given.step, rank_count=state.world_size, quiesce_ms=quiesce_ms))
    saving.decide_save(draft)


def _expected_ranks(state: State, node: int) -> tuple[int, ...] | None:
    """Those of one node; None: it is not among the expected. They stand in order of the nodes."""
    at = bisect_left(state.expected, node, key=lambda steps: steps.node)
    found = state.expected[at : at + 1]
    return found[0].ranks if found and found[0].node == node else None


def expire(draft: Draft, missing: tuple[e.MissingRank, ...]) -> None:
    """The wait for the ranks is over: name the ones that did not come, and save nothing."""
    state, now = draft.state, draft.now_unix_ms
    if state.phase not in (Phase.NOTICED, Phase.QUIESCING):
        return
    limit = state.quiesce_by_unix_ms
    if state.hold_from_unix_ms is None:
        limit = state.leave_by_unix_ms
    if now < limit:
        return
    if state.hold_from_unix_ms is not None:
        waited_ms = now - state.hold_from_unix_ms
        draft.add(e.QuiesceTimedOut(missing=missing, waited_ms=waited_ms))
    names = ", ".join(f"{m.rank} ({m.phase})" for m in missing[:8]) or "unknown"
    saving.give_up(draft, f"rank(s) {names} did not stop in time")
