"""The lifecycle as data: which event is allowed in which state, and where it leads.

This one table is the authority. The fold checks against its compiled form, ``drainfsm.machine``
builds the ``transitions`` machine from it, and the diagrams in ``specs/`` are drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from drainfsm.core import events as e
from drainfsm.core.events import Fact, snake_case
from drainfsm.core.records import Content
from drainfsm.core.state import ACTIVE, SAVE_UNDER_WAY, Phase, State
from drainfsm.errors import EventRefusedError

Guard = Callable[[State, Any], bool]


def acts_now(state: State, event: e.NoticeReceived) -> bool:
    """The notice that opens a drain asks for action at once."""
    return event.act_at_unix_ms <= event.budget.now_unix_ms


def acts_later(state: State, event: e.NoticeReceived) -> bool:
    """The notice that opens a drain is SOFT and far ahead: training goes on."""
    return event.act_at_unix_ms > event.budget.now_unix_ms


def not_started(state: State, event: e.AttemptStarted) -> bool:
    """An attempt starts once."""
    return not state.attempt.started


def everything_verified(state: State, event: e.ManifestPublished) -> bool:
    """No manifest before every expected entry was verified."""
    save = None if state.drain is None else state.drain.save
    return save is not None and save.verified and event.generation_id == save.generation_id


def same_generation(state: State, event: e.BytesStaged | e.Durable | e.SaveAbandoned) -> bool:
    """The report is about the drain's one save."""
    save = None if state.drain is None else state.drain.save
    return save is not None and event.generation_id == save.generation_id


def all_entries_there(state: State, event: e.EntriesVerified) -> bool:
    """Verification covers every file that the ranks reported durable."""
    save = None if state.drain is None else state.drain.save
    if save is None or save.written is None or event.generation_id != save.generation_id:
        return False
    return event.verified_count == event.expected_count == save.written.file_count


def at_stop_step(state: State, event: e.RankQuiesced) -> bool:
    """Ranks quiesce at the agreed step and at no other."""
    stop = None if state.drain is None else state.drain.stop
    return stop is not None and event.step == stop.step


def every_node_quiesced(state: State, event: e.RanksQuiesced) -> bool:
    """All expected nodes have reported the agreed step."""
    stop = None if state.drain is None else state.drain.stop
    return stop is not None and event.step == stop.step and not stop.waiting


def the_rule_held(state: State, event: e.SaveDecided | e.SaveStarted) -> bool:
    """A save is decided and started only if it fits."""
    return event.budget.fits


def own_epoch(state: State, event: e.AttemptLost) -> bool:
    """This attempt itself is lost."""
    return event.epoch == state.attempt.epoch


def earlier_epoch(state: State, event: e.AttemptLost) -> bool:
    """An attempt before this one was lost."""
    return event.epoch < state.attempt.epoch


def moves_earlier(state: State, event: e.DeadlineShortened) -> bool:
    """A deadline only ever moves earlier."""
    return state.drain is not None and event.to_unix_ms < state.drain.deadline_unix_ms


class Step(NamedTuple):
    """One row: ``kind`` leads from each of ``sources`` to ``dest`` (None: the state stays)."""

    event: type[Fact]
    sources: frozenset[Phase]
    dest: Phase | None
    guard: Guard | None = None

    @property
    def kind(self) -> str:
        return snake_case(self.event.__name__)


def _in(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


ANY = frozenset(Phase)
RUNNING = ACTIVE | {Phase.IDLE, Phase.CANCELLED}
OPENABLE = _in(Phase.IDLE, Phase.CANCELLED)

LIFECYCLE: tuple[Step, ...] = (
    # A drain opens, changes its deadline, is due, is called off
    Step(e.NoticeReceived, OPENABLE, Phase.NOTICED, acts_now),
    Step(e.NoticeReceived, OPENABLE, Phase.SCHEDULED, acts_later),
    Step(e.NoticeReceived, ACTIVE, None),
    Step(e.NoticeWithdrawn, ACTIVE, None),
    Step(e.DeadlineShortened, ACTIVE, None, moves_earlier),
    Step(e.DrainDue, _in(Phase.SCHEDULED), Phase.NOTICED),
    Step(e.DrainCancelled, _in(Phase.SCHEDULED, Phase.NOTICED), Phase.CANCELLED),
    # Stopping
    Step(e.NodeCordoned, _in(Phase.NOTICED, Phase.LEAVING), None),
    Step(e.StopStepAgreed, _in(Phase.NOTICED), Phase.QUIESCING),
    Step(e.RankQuiesced, _in(Phase.QUIESCING), None, at_stop_step),
    Step(e.RanksQuiesced, _in(Phase.QUIESCING), Phase.QUIESCED, every_node_quiesced),
    Step(e.QuiesceTimedOut, _in(Phase.NOTICED, Phase.QUIESCING), None),
    # Saving
    Step(e.SaveDecided, _in(Phase.QUIESCED), None, the_rule_held),
    Step(e.SaveStarted, _in(Phase.QUIESCED), Phase.SAVING, the_rule_held),
    Step(e.BytesStaged, _in(Phase.SAVING), Phase.STAGED, same_generation),
    Step(e.Durable, _in(Phase.STAGED), Phase.DURABLE, same_generation),
    Step(e.EntriesVerified, _in(Phase.DURABLE), None, all_entries_there),
    Step(e.ManifestPublished, _in(Phase.DURABLE), Phase.PUBLISHED, everything_verified),
    Step(e.SaveAbandoned, SAVE_UNDER_WAY, Phase.LEAVING, same_generation),
    Step(
        e.SaveSkipped,
        _in(Phase.NOTICED, Phase.QUIESCING, Phase.QUIESCED),
        Phase.LEAVING,
    ),
    # Leaving
    Step(e.RequeueRecorded, ANY, None),
    Step(e.Exited, ACTIVE, Phase.EXITED),
    # Around drains
    Step(e.AttemptStarted, _in(Phase.IDLE), None, not_started),
    Step(e.WorldFormed, RUNNING, None),
    Step(e.CheckpointSized, RUNNING, None),
    Step(e.AttemptFenced, ANY, None),
    Step(e.AttemptLost, RUNNING, Phase.LOST, own_epoch),
    Step(e.AttemptLost, RUNNING, None, earlier_epoch),
    Step(e.AttemptFinished, OPENABLE, None),
    Step(e.CheckpointCommitted, RUNNING, None),
    Step(e.CheckpointFailed, ANY, None),
    Step(e.CheckpointRestored, RUNNING, None),
    Step(e.RestoreRefused, ANY, None),
    Step(e.CheckpointDrilled, ANY, None),
    Step(e.HealthyStepReached, RUNNING, None),
    Step(e.NoticeNoted, ANY, None),
    Step(e.SourceUnknown, ANY, None),
    Step(e.SourceRecovered, ANY, None),
)

_Rows = tuple[tuple[Phase, Guard | None], ...]


def _compile() -> dict[type, dict[Phase, _Rows]]:
    compiled: dict[type, dict[Phase, _Rows]] = {}
    for step in LIFECYCLE:
        by_phase = compiled.setdefault(step.event, {})
        for source in step.sources:
            rows = by_phase.get(source, ())
            by_phase[source] = (*rows, (step.dest or source, step.guard))
    return compiled


TABLE = _compile()
"""Event class, then state, to its rows, for the fold."""


def refusal(state: State, event: Content) -> EventRefusedError:
    rows = TABLE[type(event)].get(state.phase, ())
    reasons = [guard.__doc__ or guard.__name__ for _, guard in rows if guard is not None]
    return EventRefusedError(
        snake_case(type(event).__name__), phase=state.phase, reason=" ".join(reasons)
    )
