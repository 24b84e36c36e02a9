"""What each kind of event changes in the state. Whether it may is said by ``lifecycle`` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core.budget import SAMPLES_MAX, Sample
from drainfsm.core.notice import revision_of
from drainfsm.core.state import (
    Attempt,
    Committed,
    Drain,
    DrainSave,
    HoldPeriod,
    Phase,
    State,
    Stop,
    WrittenFiles,
    known,
    left_on,
    merge,
)

Handler = Callable[[Attempt, Any, Any, Phase], State]
"""Attempt, drain, event and the next phase to the next state. One whose drain cannot be None is for
an event that the table allows only inside drains."""

F = TypeVar("F", bound=Handler)
EVENT_HANDLERS: dict[type[e.Fact], Handler] = {}
"""By event class; an event that only moves the phase has none."""

LEAVING = Phase.LEAVING
"""Reading a member off its class costs nearly as much as a ``replace``; so do ``min`` and
``max``."""


def _on(kind: type[e.Fact]) -> Callable[[F], F]:
    def register(handler: F) -> F:
        EVENT_HANDLERS[kind] = handler
        return handler

    return register


def _smaller(one: int, other: int) -> int:
    return one if one < other else other


def _larger(one: int, other: int) -> int:
    return one if one > other else other


# --- drains -------------------------------------------------------------------------------------


@_on(e.NoticeReceived)
def _notice_received(
    attempt: Attempt, drain: Drain | None, event: e.NoticeReceived, dest: Phase
) -> State:
    notice, deadline = event.notice, event.deadline_unix_ms
    identity = notice.identity
    withdrawn = attempt.withdrawn.get(identity, 0)
    if drain is not None and drain.drain_id == event.drain_id:
        held = merge(
            drain.notices.get(identity),
            notice,
            deadline_unix_ms=deadline,
            withdrawn_revision=withdrawn,
        )
        drain = replace(
            drain,
            notices={**drain.notices, identity: held},
            clock_skew_ms=_larger(drain.clock_skew_ms, notice.clock_skew_ms),
            act_at_unix_ms=_smaller(drain.act_at_unix_ms, event.act_at_unix_ms),
            step_ms=_larger(drain.step_ms, event.step_ms),
        )
    else:
        drain = Drain(
            drain_id=event.drain_id,
            number=1 if drain is None else drain.number + 1,
            notices={
                identity: merge(
                    None, notice, deadline_unix_ms=deadline, withdrawn_revision=withdrawn
                )
            },
            deadline_unix_ms=deadline,
            clock_skew_ms=_larger(attempt.allowances.clock_skew_ms, notice.clock_skew_ms),
            act_at_unix_ms=event.act_at_unix_ms,
            step_ms=event.step_ms,
        )
    return State(attempt, drain, dest)


@_on(e.NoticeWithdrawn)
def _notice_withdrawn(
    attempt: Attempt, drain: Drain, event: e.NoticeWithdrawn, dest: Phase
) -> State:
    identity = f"{event.source}/{event.native_id}"
    held = drain.notices.get(identity)
    revision = _larger(attempt.withdrawn.get(identity, 0), revision_of(event.revision))
    attempt = replace(attempt, withdrawn={**attempt.withdrawn, identity: revision})
    if held is not None:
        notices = {**drain.notices, identity: replace(held, withdrawn_revision=revision)}
        drain = replace(drain, notices=notices)
    return State(attempt, drain, dest)


@_on(e.DeadlineShortened)
def _deadline_shortened(
    attempt: Attempt, drain: Drain, event: e.DeadlineShortened, dest: Phase
) -> State:
    latest = event.to_unix_ms - drain.clock_skew_ms - event.budget.needed_ms
    drain = replace(
        drain,
        deadline_unix_ms=event.to_unix_ms,
        act_at_unix_ms=_smaller(drain.act_at_unix_ms, event.act_at_unix_ms),
        hold=_no_longer_than(latest, drain.hold),
    )
    return State(attempt, drain, dest)


def _no_longer_than(quiesce_by_unix_ms: int, hold: HoldPeriod | None) -> HoldPeriod | None:
    if hold is None or hold.quiesce_by_unix_ms <= quiesce_by_unix_ms:
        return hold
    return replace(hold, quiesce_by_unix_ms=quiesce_by_unix_ms)


@_on(e.NodeCordoned)
def _node_cordoned(attempt: Attempt, drain: Drain, event: e.NodeCordoned, dest: Phase) -> State:
    """When the cordon is done, ranks are asked to hold, unless they are leaving already."""
    hold = drain.hold
    if dest is not LEAVING:
        hold = HoldPeriod(
            from_unix_ms=event.budget.now_unix_ms, quiesce_by_unix_ms=event.quiesce_by_unix_ms
        )
    return State(attempt, replace(drain, cordon=event.outcome, hold=hold), dest)


@_on(e.StopStepAgreed)
def _stop_step_agreed(
    attempt: Attempt, drain: Drain, event: e.StopStepAgreed, dest: Phase
) -> State:
    waiting = frozenset([node.node for node in event.nodes])
    stop = Stop(step=event.stop_step, nodes=event.nodes, waiting=waiting)
    hold = drain.hold  # None only in a log that was tampered with
    if hold is not None:
        hold = replace(hold, quiesce_by_unix_ms=event.quiesce_by_unix_ms)
    return State(attempt, replace(drain, hold=hold, stop=stop), dest)


@_on(e.RankQuiesced)
def _rank_quiesced(attempt: Attempt, drain: Drain, event: e.RankQuiesced, dest: Phase) -> State:
    stop = known(drain.stop)
    stop = replace(stop, waiting=stop.waiting - {event.node})
    return State(attempt, replace(drain, stop=stop), dest)


@_on(e.RanksQuiesced)
def _ranks_quiesced(attempt: Attempt, drain: Drain, event: e.RanksQuiesced, dest: Phase) -> State:
    stop = replace(known(drain.stop), quiesce_ms=event.quiesce_ms)
    return State(attempt, replace(drain, stop=stop), dest)


@_on(e.SaveStarted)
def _save_started(attempt: Attempt, drain: Drain, event: e.SaveStarted, dest: Phase) -> State:
    save = DrainSave(
        generation_id=event.generation_id,
        step=event.step,
        from_unix_ms=event.budget.now_unix_ms,
    )
    return State(attempt, replace(drain, save=save), dest)


@_on(e.Durable)
def _durable(attempt: Attempt, drain: Drain, event: e.Durable, dest: Phase) -> State:
    save = known(drain.save)
    written = WrittenFiles(
        at_unix_ms=save.from_unix_ms + event.durable_ms,
        file_count=event.file_count,
        total_bytes=event.durable_bytes,
    )
    return State(attempt, replace(drain, save=replace(save, written=written)), dest)


@_on(e.EntriesVerified)
def _entries_verified(
    attempt: Attempt, drain: Drain, event: e.EntriesVerified, dest: Phase
) -> State:
    save = replace(known(drain.save), verified=True)
    return State(attempt, replace(drain, save=save), dest)


# --- the attempt --------------------------------------------------------------------------------


@_on(e.ManifestPublished)
@_on(e.CheckpointCommitted)
def _committed(
    attempt: Attempt,
    drain: Drain | None,
    event: e.ManifestPublished | e.CheckpointCommitted,
    dest: Phase,
) -> State:
    committed = Committed(
        generation_id=event.generation_id,
        manifest_digest=event.manifest_digest,
        step=event.step,
        slot=event.slot,
    )
    samples = _with_sample(attempt, event.sample)
    return State(replace(attempt, committed=committed, samples=samples), drain, dest)


def _with_sample(attempt: Attempt, sample: Sample) -> tuple[Sample, ...]:
    return (*attempt.samples[-(SAMPLES_MAX - 1) :], sample)


@_on(e.SaveAbandoned)
def _save_abandoned(attempt: Attempt, drain: Drain, event: e.SaveAbandoned, dest: Phase) -> State:
    """A save whose time ran out took at least this long, and the next estimate must not be smaller:
    every attempt would try it again, and leave with nothing."""
    if event.budget.fits:
        return State(attempt, drain, dest)
    save, now_unix_ms = known(drain.save), event.budget.now_unix_ms
    durable_at = now_unix_ms if save.written is None else save.written.at_unix_ms
    sample = Sample(
        world_size=attempt.world_size,
        save_bytes=attempt.load.save_bytes,
        store=attempt.store,
        durable_ms=durable_at - save.from_unix_ms,
        commit_ms=now_unix_ms - durable_at,
    )
    return State(replace(attempt, samples=_with_sample(attempt, sample)), drain, dest)


@_on(e.RequeueRecorded)
def _requeue_recorded(
    attempt: Attempt, drain: Drain | None, event: e.RequeueRecorded, dest: Phase
) -> State:
    return State(replace(attempt, requeue=event.record), drain, dest)


@_on(e.Exited)
@_on(e.AttemptFinished)
def _ended(
    attempt: Attempt, drain: Drain | None, event: e.Exited | e.AttemptFinished, dest: Phase
) -> State:
    return State(replace(attempt, exit_code=event.exit_code), drain, dest)


@_on(e.AttemptStarted)
def _attempt_started(
    attempt: Attempt, drain: Drain | None, event: e.AttemptStarted, dest: Phase
) -> State:
    attempt = replace(
        attempt,
        attempt_id=event.attempt_id,
        node_count=event.node_count,
        allowances=event.allowances,
        grace_ms=event.grace_ms,
        store=event.store,
        committed=None if event.restore is None else left_on(event.restore),
        samples=event.samples,
    )
    return State(attempt)  # nothing was before it


@_on(e.WorldFormed)
def _world_formed(
    attempt: Attempt, drain: Drain | None, event: e.WorldFormed, dest: Phase
) -> State:
    attempt = replace(
        attempt, world_size=event.world_size, save_bytes=event.save_bytes, restart=event.restart
    )
    return State(attempt, drain, dest)


@_on(e.CheckpointSized)
def _checkpoint_sized(
    attempt: Attempt, drain: Drain | None, event: e.CheckpointSized, dest: Phase
) -> State:
    return State(replace(attempt, save_bytes=event.save_bytes), drain, dest)


@_on(e.AttemptFenced)
def _attempt_fenced(
    attempt: Attempt, drain: Drain | None, event: e.AttemptFenced, dest: Phase
) -> State:
    return State(replace(attempt, fenced_by=event.by_epoch), drain, dest)


@_on(e.CheckpointRestored)
def _checkpoint_restored(
    attempt: Attempt, drain: Drain | None, event: e.CheckpointRestored, dest: Phase
) -> State:
    """Nobody leaves on a damaged generation, but on the one that was restored in its place."""
    committed, refused = attempt.committed, {one.generation_id for one in event.refused}
    if committed is not None and committed.generation_id in refused:
        taken = Committed(
            generation_id=event.generation_id,
            manifest_digest=event.manifest_digest,
            step=event.step,
            slot=committed.slot,
        )
        attempt = replace(attempt, committed=taken)
    return State(attempt, drain, dest)


@_on(e.HealthyStepReached)
def _healthy_step_reached(
    attempt: Attempt, drain: Drain | None, event: e.HealthyStepReached, dest: Phase
) -> State:
    return State(replace(attempt, healthy_step=event.step), drain, dest)
