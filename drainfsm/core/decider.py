"""``decide``: state, input and the time to the events that follow. Pure.

    events = decide(state, input, now_unix_ms=...)

A repeated input adds nothing. An impossible one raises ``InputRejectedError`` and changes nothing.
Every event that comes out is allowed by the lifecycle table: the draft folds it as it is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, get_args

from msgspec import UNSET

from drainfsm.core import decide_save as saving
from drainfsm.core import decide_stop as stopping
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.deadline import budget_of
from drainfsm.core.draft import Draft, reject
from drainfsm.core.events import Event
from drainfsm.core.state import Phase, State

AsItIs: TypeAlias = (
    e.CheckpointFailed
    | e.CheckpointRestored
    | e.RestoreRefused
    | e.SourceUnknown
    | e.SourceRecovered
)
"""Facts that are recorded as they were reported."""

EX_TEMPFAIL = 75
"""Exit code of an attempt that drained and wants to come back (sysexits.h)."""


def decide(state: State, given: i.AnyInput, *, now_unix_ms: int) -> tuple[Event, ...]:
    """The events that ``given`` adds to the log at this instant; none if it is a repeat.

    Raises:
        InputRejectedError: the input makes no sense in the present state.
        NoticeRejectedError: the notice's deadline cannot be acted on.
    """
    if not state.attempt.started and not isinstance(given, i.StartAttempt):
        raise reject(state, given, "the attempt has not started")
    draft = Draft(state, now_unix_ms=now_unix_ms)
    INPUT_HANDLERS[type(given)](draft, given)
    return tuple(draft.events)


def _start_attempt(draft: Draft, given: i.StartAttempt) -> None:
    state = draft.state
    if state.attempt.started:
        if state.attempt.attempt_id == given.attempt_id:
            return
        raise reject(state, given, f"attempt {state.attempt.attempt_id} has started already")
    draft.add(
        e.AttemptStarted(
            attempt_id=given.attempt_id,
            node_count=given.node_count,
            allowances=given.allowances,
            grace_ms=given.grace_ms,
            store=given.store,
            store_id=given.store_id or UNSET,
            claim_slot=given.claim_slot,
            restore=given.restore,
            samples=given.samples,
        )
    )
    if given.lost_epoch is not None:
        draft.add(
            e.AttemptLost(
                epoch=given.lost_epoch,
                reason="it left no requeue record",
                last_seen_unix_ms=given.lost_last_seen_unix_ms,
            )
        )


def _form_world(draft: Draft, given: i.FormWorld) -> None:
    state = draft.state
    if given.world_size < 1:
        raise reject(state, given, f"a world of {given.world_size} ranks")
    if state.phase not in (
        Phase.IDLE,
        Phase.SCHEDULED,
        Phase.NOTICED,
        Phase.CANCELLED,
    ):
        return
    attempt, save_bytes = state.attempt, given.save_bytes
    if attempt.world_size != given.world_size or attempt.restart != given.restart:
        if not save_bytes and attempt.world_size == given.world_size:
            save_bytes = attempt.save_bytes  # as the ranks before them declared
        draft.add(
            e.WorldFormed(world_size=given.world_size, save_bytes=save_bytes, restart=given.restart)
        )
    elif save_bytes not in (0, attempt.save_bytes):
        draft.add(e.CheckpointSized(save_bytes=save_bytes))


def _requeue_recorded(draft: Draft, fact: e.RequeueRecorded) -> None:
    if draft.state.attempt.requeue is None:
        draft.add(fact)


def _exited(draft: Draft, given: i.ReportExited) -> None:
    """No rank is left: the end of a drain, or of a job that ended by itself."""
    state = draft.state
    if state.attempt.exit_code is not None or state.phase in (Phase.EXITED, Phase.LOST):
        return
    if not state.phase.active:
        draft.add(e.AttemptFinished(exit_code=given.exit_code))
        return
    saving.give_up(draft, "the job's processes ended by themselves")
    exit_now(draft, exit_code=given.exit_code, nodes=given.nodes)


def exit_now(draft: Draft, *, exit_code: int, nodes: tuple[e.NodeExit, ...]) -> None:
    remaining_ms = draft.drain.deadline_unix_ms - draft.now_unix_ms
    draft.add(e.Exited(exit_code=exit_code, nodes=nodes, remaining_ms=remaining_ms))


def _ranks_lost(draft: Draft, given: i.ReportRanksLost) -> None:
    """Ranks or a node died under us. Once the bytes are durable nobody needs them any more."""
    state = draft.state
    match state.phase:
        case Phase.NOTICED | Phase.QUIESCING:
            draft.add(e.QuiesceTimedOut(missing=given.missing, waited_ms=draft.waited_ms))
            saving.give_up(draft, given.reason)
        case Phase.QUIESCED | Phase.SAVING | Phase.STAGED:
            saving.give_up(draft, given.reason)
        case Phase.IDLE | Phase.CANCELLED | Phase.SCHEDULED:
            if given.node_lost and state.attempt.exit_code is None:
                draft.add(e.AttemptLost(epoch=state.attempt.epoch, reason=given.reason))
        case _:
            pass


def _fenced(draft: Draft, given: i.ReportFenced) -> None:
    state = draft.state
    epoch = state.attempt.epoch
    if given.by_epoch <= epoch:
        raise reject(state, given, f"epoch {given.by_epoch} is not newer than {epoch}")
    if state.attempt.fenced_by is not None:
        return
    draft.add(e.AttemptFenced(by_epoch=given.by_epoch))
    reason = f"epoch {given.by_epoch} has claimed the job"
    if state.phase not in (Phase.IDLE, Phase.CANCELLED, Phase.SCHEDULED):
        saving.give_up(draft, reason)
    elif state.attempt.exit_code is None:
        draft.add(e.AttemptLost(epoch=state.attempt.epoch, reason=reason))


def _as_it_is(draft: Draft, fact: AsItIs) -> None:
    """It happened; there is nothing to decide."""
    draft.add(fact)


def _healthy_step(draft: Draft, fact: e.HealthyStepReached) -> None:
    state = draft.state
    if state.attempt.healthy_step is None and not state.phase.over:
        draft.add(fact)


def _tick(draft: Draft, given: i.Tick) -> None:
    """What happens by the passing of time alone. Whatever is stuck, the drain ends by its
    deadline."""
    state, now = draft.state, draft.now_unix_ms
    if not state.phase.active:
        return
    if state.phase is Phase.SCHEDULED and now >= draft.drain.act_at_unix_ms:
        draft.add(e.DrainDue(reason="latest safe start", budget=budget_of(state, now_unix_ms=now)))
    stopping.expire(draft, given.missing)
    saving.recheck(draft)
    if draft.state.phase.active and now >= draft.drain.usable_deadline_unix_ms:
        saving.give_up(draft, "the deadline has come")
        exit_now(draft, exit_code=EX_TEMPFAIL, nodes=())


INPUT_HANDLERS: dict[type, Callable[[Draft, Any], None]] = {
    i.StartAttempt: _start_attempt,
    i.FormWorld: _form_world,
    i.ReceiveNotice: stopping.receive_notice,
    i.WithdrawNotice: stopping.withdraw_notice,
    i.ReportCordon: stopping.report_cordon,
    i.ReportPositions: stopping.report_positions,
    i.ReportQuiesced: stopping.report_quiesced,
    i.ReportStaged: saving.report_staged,
    i.ReportDurable: saving.report_durable,
    i.ReportVerified: saving.report_verified,
    i.ReportPublished: saving.report_published,
    i.ReportSaveFailed: saving.report_save_failed,
    i.ReportExited: _exited,
    i.ReportRanksLost: _ranks_lost,
    i.ReportFenced: _fenced,
    e.CheckpointCommitted: saving.checkpoint_committed,
    e.HealthyStepReached: _healthy_step,
    e.RequeueRecorded: _requeue_recorded,
    i.Tick: _tick,
}
INPUT_HANDLERS |= dict.fromkeys(get_args(AsItIs), _as_it_is)
