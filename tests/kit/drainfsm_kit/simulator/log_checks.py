"""What must hold in the log of one attempt once a simulation is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from drainfsm.core import events as e
from drainfsm.core.exit_plan import exit_plan
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record
from drainfsm.core.rules import broken_rules, drains_of
from drainfsm.core.state import State
from drainfsm_kit.simulator.plan import JOB, LATE_MS

LEAVE_MS_MIN = 1_200
"""For a rank to end its step and itself, before an agent whose clock is as far ahead of the
coordinator's as it may be kills it."""

LEAVE_MS = 400
"""For a decision that is due to be made and written."""


def log_problems(records: Sequence[Record], *, epoch: int, committed: Set[str]) -> Iterator[str]:
    """Whatever happened to the attempt. ``committed``: what the store has a commit of."""
    yield from broken_rules(records)
    fold = Fold(job_id=JOB, epoch=epoch)
    for record in records:
        before = fold.state
        if not fold.read(record):
            yield f"I10: record {record.id} of the journal is skipped"
        for event in record.events:
            yield from _against_state(event, before, fold.state, committed)


def _against_state(
    event: e.Event | object, before: State, after: State, committed: Set[str]
) -> Iterator[str]:
    match event:
        case e.DrainCancelled() if not after.current.all_withdrawn:
            yield "I2: a drain was called off although a notice stood"
        case e.RequeueRecorded(record=record):
            known = before.attempt.committed or after.attempt.committed
            named = record.generation_id
            if named is not None and named not in committed:
                yield f"I8: {named} is recorded, and was never committed"
            elif known is not None and named != known.generation_id:
                # The store has a commit that this attempt has not put on record (yet).
                own = named is not None and named.startswith(f"e{before.attempt.epoch:06d}-")
                if not own or record.step is None or record.step < known.step:
                    yield f"I8: {named} is recorded, {known.generation_id} was committed"
        case _:
            pass


def stream_problems(
    records: Sequence[Record], stream: Sequence[Record], *, epoch: int, all_of: bool
) -> Iterator[str]:
    """I10: what readers of the stream see is what the journal says. ``all_of``: and all of it."""
    journal, shipped = Fold(job_id=JOB, epoch=epoch), Fold(job_id=JOB, epoch=epoch)
    for record in records:
        journal.read(record)
    counted = [record for record in stream if shipped.read(record)]
    if counted != list(records[: len(counted)]):
        yield "I10: the stream is not what the journal says"
    elif len(counted) != len(records):
        if not all_of:
            return
        yield f"I10: {len(counted)} of {len(records)} records are in the stream"
    elif shipped.state != journal.state:
        yield "I10: the fold of the stream is not that of the journal"


def late_end(records: Sequence[Record]) -> Iterator[str]:
    """I9: the end of a drain is on record by the deadline, if that was possible."""
    deadline = possible = 0
    for record in records:
        for event in record.events:
            match event:
                case e.NoticeReceived(effective_deadline_unix_ms=effective):
                    if effective != deadline:
                        possible = record.at_unix_ms + LATE_MS
                    deadline = effective
                case e.Exited() if record.at_unix_ms > max(deadline, possible):
                    yield f"I9: exited {record.at_unix_ms - deadline} ms after the deadline"
                case _:
                    pass


def late_decision(records: Sequence[Record]) -> Iterator[str]:
    """I9: the ranks are told to leave while the exit margin is still whole."""
    margin_ms, leave_by = 0, None
    for record in records:
        at = record.at_unix_ms
        if leave_by is not None and at > leave_by + LEAVE_MS:
            yield f"I9: undecided {at - leave_by} ms after the last moment to leave"
            return
        for event in record.events:
            match event:
                case e.AttemptStarted(allowances=allowances):
                    margin_ms = allowances.exit_margin_ms
                case e.NoticeReceived(budget=budget):
                    latest = budget.deadline_unix_ms - budget.clock_skew_ms - margin_ms
                    leave_by = max(at, latest if leave_by is None else min(leave_by, latest))
                case e.SaveSkipped() | e.SaveAbandoned() | e.ManifestPublished():
                    return
                case e.DrainCancelled() | e.Exited() | e.AttemptLost():
                    leave_by = None
                case _:
                    pass


def outcomes(records: Sequence[Record], *, epoch: int) -> Iterator[str]:
    """How the drains of an attempt, and the attempt itself, ended."""
    for drain in drains_of(records):
        kinds = {type(event) for event in drain}
        for kind, name in (
            (e.ManifestPublished, "saved"),
            (e.SaveSkipped, "skipped"),
            (e.SaveAbandoned, "abandoned"),
            (e.DrainCancelled, "cancelled"),
        ):
            if kind in kinds:
                yield name
    healthy, margin_left = False, True
    for record in records:
        for event in record.events:
            match event:
                case e.AttemptStarted(allowances=given):
                    plan = exit_plan(usable_deadline_unix_ms=0, exit_margin_ms=given.exit_margin_ms)
                    leave_ms = plan.kill_by_unix_ms - plan.leave_by_unix_ms
                    leave_ms -= 2 * given.clock_skew_ms
                    margin_left = leave_ms >= LEAVE_MS_MIN
                case e.NoticeReceived(budget=budget):
                    enough = budget.remaining_ms > budget.exit_margin_ms
                    margin_left = margin_left and healthy and enough
                case e.HealthyStepReached():
                    healthy = True
                case e.SaveAbandoned():
                    margin_left = False  # a rank in the middle of a write may need to be killed
                case e.AttemptLost(epoch=lost):
                    yield "lost" if lost == epoch else "lost before"
                case e.AttemptFenced():
                    yield "fenced"
                case e.Exited(nodes=nodes) if any(node.killed_ranks for node in nodes):
                    yield "killed" if margin_left else "killed, no time"
                case e.AttemptFinished():
                    yield "finished"
                case _:
                    pass
