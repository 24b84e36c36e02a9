"""Records as steps of the model in ``specs/models/Drain.tla``: time, kinds, and the state after.

A step says when its record was written as the model sees time: which stages of a drain still fit
before which deadline. The arithmetic is done here, with the core's own rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Stage
from drainfsm.core.deadline import budget_of, wait_until_unix_ms
from drainfsm.core.fold import Fold
from drainfsm.core.notice import revision_of
from drainfsm.core.records import Record
from drainfsm.core.state import Phase, State
from drainfsm_kit.small_world import drain_view

History = Sequence[Record]

OUT_OF_SCOPE: tuple[type[e.Fact], ...] = (
    e.AttemptStarted,
    e.WorldFormed,
    e.CheckpointSized,
    e.CheckpointDrilled,
    e.CheckpointFailed,
    e.CheckpointRestored,
    e.RestoreRefused,
    e.HealthyStepReached,
    e.NoticeNoted,
    e.SourceUnknown,
    e.SourceRecovered,
)
"""Facts that no decision of the model follows from."""

STAGES = (Stage.NOTICE, Stage.QUIESCED, Stage.SAVING, Stage.DURABLE)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One record as the model has it."""

    position: int
    levels: tuple[int, ...]
    """For each deadline of the history, as ``level`` says."""

    due: bool
    expired: bool
    kinds: tuple[str, ...]
    notices: tuple[tuple[str, str, int, int], ...]
    withdrawn: tuple[tuple[str, int], ...]
    after: dict[str, Any]

    @property
    def told(self) -> str:
        when = f"levels {self.levels}{', due' * self.due}{', expired' * self.expired}"
        return f"record {self.position}: {', '.join(self.kinds)} at {when}, to {self.after}"


def in_scope(event: object, state: State) -> bool:
    match event:
        case e.UnknownFact():
            return False
        case e.AttemptLost(epoch=epoch):
            return epoch == state.attempt.epoch
        case e.CheckpointCommitted(generation_id=generation_id):
            return _is_drains(generation_id, state)  # else it is a periodic save's
        case _:
            return not isinstance(event, OUT_OF_SCOPE)


def _is_drains(generation_id: str, state: State) -> bool:
    return state.save is not None and state.save.generation_id == generation_id


def steps_of(history: History) -> list[Step]:
    """The steps of one attempt's history; records without a decision in scope are left out."""
    deadlines = sorted(
        {
            event.deadline_unix_ms
            for record in history
            for event in record.events
            if isinstance(event, e.NoticeReceived)
        }
    )
    fold = Fold(job_id=history[0].job_id, epoch=history[0].epoch)
    steps = []
    for record in history:
        before = fold.state
        if not fold.read(record):
            continue
        after = fold.state
        events = [event for event in record.events if in_scope(event, after)]
        if events:
            steps.append(_step(record, events, before, after, deadlines))
    return steps


def _step(
    record: Record, events: list[Any], before: State, after: State, deadlines: list[int]
) -> Step:
    now = record.at_unix_ms
    rank = {deadline: place for place, deadline in enumerate(deadlines, start=1)}
    received = [event for event in events if isinstance(event, e.NoticeReceived)]
    held = before.drain is not None and before.drain.hold is not None
    waiting = held and before.phase in (Phase.NOTICED, Phase.QUIESCING)
    drain = after.drain
    skew_ms, step_ms = (0, 0) if drain is None else (drain.clock_skew_ms, drain.step_ms)
    return Step(
        position=record.follows,
        levels=tuple(level(before, skew_ms, step_ms, now, deadline) for deadline in deadlines),
        due=drain is None or now >= drain.act_at_unix_ms,
        expired=waiting and now >= wait_until_unix_ms(before),
        kinds=tuple(type(event).__name__ for event in events),
        notices=tuple(
            (
                event.notice.identity,
                event.notice.notice_class.value,
                rank[event.deadline_unix_ms],
                revision_of(event.notice.revision),
            )
            for event in received
        ),
        withdrawn=tuple(
            (f"{event.source}/{event.native_id}", revision_of(event.revision))
            for event in events
            if isinstance(event, e.NoticeWithdrawn)
        ),
        after=view_after(after, rank),
    )


def level(
    state: State, clock_skew_ms: int, step_ms: int, now_unix_ms: int, deadline_unix_ms: int
) -> int:
    """How many stages of a drain no longer fit before the deadline.

    5: the deadline less the clock skew has come; 6: the deadline itself.
    """
    if now_unix_ms >= deadline_unix_ms - clock_skew_ms:
        return 6 if now_unix_ms >= deadline_unix_ms else 5
    fits = [
        budget_of(
            state,
            stage=stage,
            now_unix_ms=now_unix_ms,
            deadline_unix_ms=deadline_unix_ms,
            clock_skew_ms=clock_skew_ms,
            step_ms=step_ms,
        ).fits
        for stage in STAGES
    ]
    return fits.count(False)


def view_after(state: State, rank: dict[int, int]) -> dict[str, Any]:
    """What must be equal in the model after the step."""
    committed = state.attempt.committed
    return drain_view(state, {None: 0} | rank) | {
        "committed": committed is not None and _is_drains(committed.generation_id, state),
        "notices": {
            (
                identity,
                held.notice.notice_class.value,
                rank[held.earliest_unix_ms],
                held.revision,
                held.withdrawn,
            )
            for identity, held in ({} if state.drain is None else state.drain.notices).items()
        },
        "withdrawn": set(state.attempt.withdrawn.items()),
    }
