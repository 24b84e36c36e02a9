"""What a recorded fact asks the shell to do. Run only after the fact is fsynced, never on replay.

notice ─> CordonNodes ─> HoldRanks ─> ReleaseTo ─> StartSave ─> VerifyEntries
    ─> PublishManifest ─> RecordRequeue and LeaveRanks
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from drainfsm.core import events as e
from drainfsm.core.deadline import durable_by_unix_ms, kill_by_unix_ms, wait_until_unix_ms
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.notice import Cause
from drainfsm.core.state import Phase, State, known


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all effects."""


class CordonNodes(Effect, frozen=True, kw_only=True):
    """Ask the platform to schedule nothing new on these nodes (empty: the job's own)."""

    nodes: tuple[str, ...]


class HoldRanks(Effect, frozen=True, kw_only=True):
    """Hold every rank at its next step boundary, and report positions by the given time."""

    answer_by_unix_ms: int


class ReleaseTo(Effect, frozen=True, kw_only=True):
    """Let ranks run on to the end of the stop step and hold there."""

    stop_step: int
    quiesce_by_unix_ms: int


class ResumeTraining(Effect, frozen=True, kw_only=True):
    """The drain was called off: let held ranks run on."""


class StartSave(Effect, frozen=True, kw_only=True):
    """Have every rank write its part of this generation."""

    generation_id: str
    step: int
    durable_by_unix_ms: int


class AbortSave(Effect, frozen=True, kw_only=True):
    """Stop writing this generation: the save was given up."""

    generation_id: str


class VerifyEntries(Effect, frozen=True, kw_only=True):
    """Compare what the store holds with what the ranks reported."""

    generation_id: str


class PublishManifest(Effect, frozen=True, kw_only=True):
    """Write the manifest and create the commit record."""

    generation_id: str


class RecordRequeue(Effect, frozen=True, kw_only=True):
    """Write the requeue record, which the replacement restores from."""

    cause: Cause


class LeaveRanks(Effect, frozen=True, kw_only=True):
    """Every rank leaves; agents kill what is left at ``kill_by_unix_ms``."""

    kill_by_unix_ms: int | None
    """None: at once."""


AnyEffect: TypeAlias = (
    CordonNodes
    | HoldRanks
    | ReleaseTo
    | ResumeTraining
    | StartSave
    | AbortSave
    | VerifyEntries
    | PublishManifest
    | RecordRequeue
    | LeaveRanks
)


def effects_of(event: e.Event, state: State) -> tuple[AnyEffect, ...]:
    """What ``event`` asks for, given the state after its record."""
    match event:
        case e.NoticeReceived() if state.phase is Phase.NOTICED and len(state.current.notices) == 1:
            return (CordonNodes(nodes=state.current.target_nodes),)
        case e.DrainDue():
            return (CordonNodes(nodes=state.current.target_nodes),)
        case e.NodeCordoned() if state.phase is Phase.NOTICED:
            return (HoldRanks(answer_by_unix_ms=wait_until_unix_ms(state)),)
        case e.StopStepAgreed():
            return (
                ReleaseTo(
                    stop_step=event.stop_step,
                    quiesce_by_unix_ms=event.quiesce_by_unix_ms,
                ),
            )
        case e.SaveStarted():
            return (
                StartSave(
                    generation_id=event.generation_id,
                    step=event.step,
                    durable_by_unix_ms=durable_by_unix_ms(state),
                ),
            )
        case e.Durable():
            return (VerifyEntries(generation_id=event.generation_id),)
        case e.EntriesVerified():
            return (PublishManifest(generation_id=event.generation_id),)
        case e.SaveAbandoned():
            leave = _leave(state, now_unix_ms=event.budget.now_unix_ms)
            return (AbortSave(generation_id=event.generation_id), *leave)
        case e.SaveSkipped():
            return _leave(state, now_unix_ms=event.budget.now_unix_ms)
        case e.ManifestPublished():
            written = known(known(state.save).written)
            return _leave(state, now_unix_ms=written.at_unix_ms + event.commit_ms)
        case e.DrainCancelled():
            return (ResumeTraining(),)
        case e.AttemptLost() if state.phase is Phase.LOST:
            return (RecordRequeue(cause=Cause.LOST), LeaveRanks(kill_by_unix_ms=None))
        case e.AttemptFinished():
            return (RecordRequeue(cause=_own_end(event.exit_code)),)
        case e.Exited(exit_code=code) if state.attempt.requeue is None:
            cause = state.current.cause if code == EX_TEMPFAIL else _own_end(code)
            return (RecordRequeue(cause=cause),)
        case _:
            return ()


def _own_end(exit_code: int) -> Cause:
    """The job ended by itself: outside a drain, or before the drain had stopped it."""
    return Cause.FINISHED if exit_code == 0 else Cause.FAILED


def _leave(state: State, *, now_unix_ms: int) -> tuple[AnyEffect, ...]:
    kill_by = kill_by_unix_ms(state, asked_unix_ms=now_unix_ms)
    return (RecordRequeue(cause=state.current.cause), LeaveRanks(kill_by_unix_ms=kill_by))
