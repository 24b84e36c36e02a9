"""What each kind of event changes in the state. Whether it may is said by ``lifecycle`` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core.budget import SAMPLES_MAX, Sample
from drainfsm.core.state import ACTIVE, Committed, Phase, State, merge

Handler = Callable[[State, Any, Phase], State]
F = TypeVar("F", bound=Handler)
HANDLERS: dict[type[e.Fact], Handler] = {}
"""By event class, which has none if it only moves the phase."""

LEAVING = Phase.LEAVING
"""A member that is read off its class costs most of a ``replace``; ``min`` and ``max`` do too."""


def _on(kind: type[e.Fact]) -> Callable[[F], F]:
    def register(handler: F) -> F:
        HANDLERS[kind] = handler
        return handler

    return register


def _smaller(one: int, other: int) -> int:
    return one if one < other else other


def _larger(one: int, other: int) -> int:
    return one if one > other else other


@_on(e.NoticeReceived)
def _notice_received(state: State, event: e.NoticeReceived, dest: Phase) -> State:
    notice, deadline = event.notice, event.deadline_unix_ms
    identity = notice.identity
    if state.phase in ACTIVE:
        held = merge(state.notices.get(identity), notice, deadline_unix_ms=deadline)
        return replace(
            state,
            notices={**state.notices, identity: held},
            clock_skew_ms=_larger(state.clock_skew_ms, notice.clock_skew_ms),
            act_at_unix_ms=_smaller(state.act_at_unix_ms, event.act_at_unix_ms),
        )
    return replace(
        state,
        phase=dest,
        drain_id=event.drain_id,
        drain_count=state.drain_count + 1,
        notices={identity: merge(None, notice, deadline_unix_ms=deadline)},
        deadline_unix_ms=deadline,
        clock_skew_ms=_larger(state.allowances.clock_skew_ms, notice.clock_skew_ms),
        act_at_unix_ms=event.act_at_unix_ms,
        cordon=None,
        hold_from_unix_ms=None,
        quiesce_by_unix_ms=0,
        stop_step=None,
        expected=(),
        quiesced_nodes=frozenset(),
        quiesce_ms=None,
    )


@_on(e.NoticeWithdrawn)
def _notice_withdrawn(state: State, event: e.NoticeWithdrawn, dest: Phase) -> State:
    identity = f"{event.source}/{event.native_id}"
    held = state.notices.get(identity)
    if held is None:
        return state
    return replace(state, notices={**state.notices, identity: replace(held, withdrawn=True)})


@_on(e.DeadlineShortened)
def _deadline_shortened(state: State, event: e.DeadlineShortened, dest: Phase) -> State:
    quiesce_by = state.quiesce_by_unix_ms
    if state.hold_from_unix_ms is not None:
        latest = event.to_unix_ms - state.clock_skew_ms - event.budget.needed_ms
        quiesce_by = _smaller(quiesce_by, latest)
    return replace(
        state,
        deadline_unix_ms=event.to_unix_ms,
        act_at_unix_ms=_smaller(state.act_at_unix_ms, event.act_at_unix_ms),
        quiesce_by_unix_ms=quiesce_by,
    )


@_on(e.NodeCordoned)
def _node_cordoned(state: State, event: e.NodeCordoned, dest: Phase) -> State:
    if state.phase is LEAVING:
        return replace(state, cordon=event.outcome)
    return replace(
        state,
        cordon=event.outcome,
        hold_from_unix_ms=event.budget.now_unix_ms,
        quiesce_by_unix_ms=event.quiesce_by_unix_ms,
    )


@_on(e.StopStepAgreed)
def _stop_step_agreed(state: State, event: e.StopStepAgreed, dest: Phase) -> State:
    return replace(
        state,
        phase=dest,
        stop_step=event.stop_step,
        expected=event.nodes,
        quiesce_by_unix_ms=_smaller(state.quiesce_by_unix_ms, event.quiesce_by_unix_ms),
    )


@_on(e.RankQuiesced)
def _rank_quiesced(state: State, event: e.RankQuiesced, dest: Phase) -> State:
    return replace(state, quiesced_nodes=state.quiesced_nodes | {event.node})


@_on(e.RanksQuiesced)
def _ranks_quiesced(state: State, event: e.RanksQuiesced, dest: Phase) -> State:
    return replace(state, phase=dest, quiesce_ms=event.quiesce_ms)


@_on(e.SaveStarted)
def _save_started(state: State, event: e.SaveStarted, dest: Phase) -> State:
    return replace(
        state,
        phase=dest,
        generation_id=event.generation_id,
        save_from_unix_ms=event.budget.now_unix_ms,
        verified=False,
    )


@_on(e.BytesStaged)
def _bytes_staged(state: State, event: e.BytesStaged, dest: Phase) -> State:
    return replace(state, phase=dest, staged_bytes=event.staged_bytes)


@_on(e.Durable)
def _durable(state: State, event: e.Durable, dest: Phase) -> State:
    return replace(
        state,
        phase=dest,
        durable_bytes=event.durable_bytes,
        file_count=event.file_count,
        durable_at_unix_ms=(state.save_from_unix_ms or 0) + event.durable_ms,
    )


@_on(e.EntriesVerified)
def _entries_verified(state: State, event: e.EntriesVerified, dest: Phase) -> State:
    return replace(state, verified=True)


@_on(e.ManifestPublished)
@_on(e.CheckpointCommitted)
def _committed(
    state: State, event: e.ManifestPublished | e.CheckpointCommitted, dest: Phase
) -> State:
    committed = Committed(
        generation_id=event.generation_id,
        manifest_digest=event.manifest_digest,
        step=event.step,
    )
    samples = _with_sample(state.samples, event.sample)
    return replace(state, phase=dest, committed=committed, samples=samples)


def _with_sample(samples: tuple[Sample, ...], sample: Sample) -> tuple[Sample, ...]:
    return (*samples[-(SAMPLES_MAX - 1) :], sample)


@_on(e.RequeueRecorded)
def _requeue_recorded(state: State, event: e.RequeueRecorded, dest: Phase) -> State:
    return replace(state, requeue=event.record)


@_on(e.Exited)
def _exited(state: State, event: e.Exited, dest: Phase) -> State:
    return replace(state, phase=dest, exit_code=event.exit_code)


@_on(e.AttemptStarted)
def _attempt_started(state: State, event: e.AttemptStarted, dest: Phase) -> State:
    committed = None
    restore = event.restore
    if restore is not None and restore.generation_id is not None:
        committed = Committed(
            generation_id=restore.generation_id,
            manifest_digest=restore.manifest_digest or "",
            step=restore.step or 0,
        )
    return replace(
        state,
        started=True,
        attempt_id=event.attempt_id,
        node_count=event.node_count,
        allowances=event.allowances,
        grace_ms=event.grace_ms,
        store=event.store,
        committed=committed,
        samples=event.samples,
    )


@_on(e.WorldFormed)
def _world_formed(state: State, event: e.WorldFormed, dest: Phase) -> State:
    return replace(
        state, world_size=event.world_size, save_bytes=event.save_bytes, restart=event.restart
    )


@_on(e.CheckpointSized)
def _checkpoint_sized(state: State, event: e.CheckpointSized, dest: Phase) -> State:
    return replace(state, save_bytes=event.save_bytes)


@_on(e.AttemptFenced)
def _attempt_fenced(state: State, event: e.AttemptFenced, dest: Phase) -> State:
    return replace(state, fenced_by=event.by_epoch)


@_on(e.AttemptFinished)
def _attempt_finished(state: State, event: e.AttemptFinished, dest: Phase) -> State:
    return replace(state, exit_code=event.exit_code)


@_on(e.CheckpointRestored)
def _checkpoint_restored(state: State, event: e.CheckpointRestored, dest: Phase) -> State:
    """A damaged generation is nothing to leave on: what was taken in its place is."""
    refused = {one.generation_id for one in event.refused}
    if state.committed is None or state.committed.generation_id not in refused:
        return state
    taken = Committed(
        generation_id=event.generation_id, manifest_digest=event.manifest_digest, step=event.step
    )
    return replace(state, committed=taken)


@_on(e.HealthyStepReached)
def _healthy_step_reached(state: State, event: e.HealthyStepReached, dest: Phase) -> State:
    return replace(state, healthy_step=event.step)
