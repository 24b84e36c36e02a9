"""What happened in an attempt, event by event: the state after each, and the time it left.

The fold decides what counts. What it skips (stale, repeated), what the table refuses and what this
version does not know is shown as such, never hidden, and ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from drainfsm.core.events import AttemptLost, Event, UnknownFact, kind_of
from drainfsm.core.fold import Fold, evolve
from drainfsm.core.records import Record
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.state import Committed, Phase, State
from drainfsm.errors import EventRefusedError

APPLIED, SKIPPED, REFUSED, UNKNOWN = "applied", "skipped", "refused", "unknown"
OUTCOMES = (APPLIED, SKIPPED, REFUSED, UNKNOWN)


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one attempt, in the order of its log."""

    job_id: str
    epoch: int
    records: tuple[Record, ...]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the log and what it did."""

    at_unix_ms: int
    epoch: int
    position: int
    """Of the record in the attempt's log; all events of one decision share it."""

    kind: str
    outcome: str
    """``applied``, ``skipped``, ``refused`` or ``unknown``; only the first changes the state."""

    note: str
    """Why it was not applied."""

    phase: Phase
    """After the event."""

    drain_id: str
    """The drain that the event belongs to; empty: none was open."""

    deadline_unix_ms: int | None
    """Effective deadline of that drain, after the event."""

    remaining_ms: int | None
    """From the event to that deadline; negative: too late."""

    event: Event | UnknownFact


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt stands at the end of its log."""

    kind: str = "final_state"
    job_id: str
    epoch: int
    phase: Phase
    lost: str
    """Not empty: the attempt was lost; by its own log, or as the next attempt found."""

    drains: tuple[str, ...]
    committed: Committed | None
    healthy_step: int | None
    exit_code: int | None
    fenced_by: int | None
    requeue: RequeueRecord | None
    record_count: int
    event_counts: dict[str, int]
    """By outcome."""


class AttemptReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What every event of an attempt did, and how the attempt stands at the end."""

    lines: tuple[Line, ...]
    final: Final
    counted: tuple[Record, ...]
    """The records that every reader counts: what ``core.explain`` and ``core.rules`` take."""


def replay_job(logs: Sequence[AttemptLog]) -> list[AttemptReplay]:
    """Every attempt, in the order of the epochs. One that the next one found lost says so."""
    return list(replay_in_turn(sorted(logs, key=_order)))


def replay_in_turn(logs: Iterable[AttemptLog]) -> Iterator[AttemptReplay]:
    """The same, of logs that come in this order: two are held at a time."""
    earlier: AttemptReplay | None = None
    for log in logs:
        replay = replay_attempt(log)
        if earlier is not None:
            yield _with_loss(earlier, replay)
        earlier = replay
    if earlier is not None:
        yield earlier


def _order(log: AttemptLog) -> tuple[str, int]:
    return (log.job_id, log.epoch)


def replay_attempt(log: AttemptLog) -> AttemptReplay:
    """Fold the log, and keep what each event did."""
    fold = Fold(job_id=log.job_id, epoch=log.epoch)
    lines: list[Line] = []
    counted: list[Record] = []
    seen: set[str] = set()
    for record in log.records:
        before, position = fold.state, fold.position
        try:
            if fold.read(record):
                lines += _applied(before, record, position)
                counted.append(record)
            else:
                note = _why_skipped(record, before, position, seen=seen)
                lines += _unapplied(before, record, position, outcome=SKIPPED, note=note)
        except EventRefusedError:
            lines += _refused(before, record, position)
        seen.add(record.id)
    return AttemptReplay(lines=tuple(lines), final=_final(fold, lines), counted=tuple(counted))


def select_drain(replay: AttemptReplay, drain_id: str) -> AttemptReplay:
    """Only the lines of that drain."""
    lines = tuple(line for line in replay.lines if line.drain_id == drain_id)
    return replace(replay, lines=lines)


def encode_line(line: Line | Final) -> bytes:
    """One line of ``replay --json``, with its newline."""
    encoded = msgspec.json.encode(line)
    if isinstance(line, Line) and isinstance(line.event, UnknownFact):
        fields = msgspec.structs.asdict(line) | {"event": line.event.body}
        encoded = msgspec.json.format(msgspec.json.encode(fields), indent=-1)
    return encoded + b"\n"


def _applied(state: State, record: Record, position: int) -> Iterator[Line]:
    for event in record.events:
        before = state
        if isinstance(event, UnknownFact):
            note = "a kind that this version does not know"
            yield _line(before, state, record, position, event, outcome=UNKNOWN, note=note)
        else:
            state = evolve(state, event)
            yield _line(before, state, record, position, event, outcome=APPLIED)


def _unapplied(
    state: State, record: Record, position: int, *, outcome: str, note: str
) -> Iterator[Line]:
    for event in record.events:
        yield _line(state, state, record, position, event, outcome=outcome, note=note)


def _refused(state: State, record: Record, position: int) -> Iterator[Line]:
    """A record counts as a whole or not at all, so its other events are not applied either."""
    folded, refusal = state, ""
    for event in record.events:
        note = "not applied: another event of the same record is refused"
        if not refusal and not isinstance(event, UnknownFact):
            try:
                folded = evolve(folded, event)
            except EventRefusedError as error:
                note = refusal = str(error)
        yield _line(state, state, record, position, event, outcome=REFUSED, note=note)


def _why_skipped(record: Record, state: State, position: int, *, seen: set[str]) -> str:
    if record.id in seen:
        return "repeated: a record with this id stands before"
    if record.job_id != state.attempt.job_id or record.epoch != state.attempt.epoch:
        return f"of another log: job {record.job_id}, epoch {record.epoch}"
    return f"stale: its writer had read {record.follows} records, and it stands after {position}"


def _line(
    before: State,
    after: State,
    record: Record,
    position: int,
    event: Event | UnknownFact,
    *,
    outcome: str,
    note: str = "",
) -> Line:
    in_drain = (
        before.phase.active or after.phase.active or after.phase in (Phase.EXITED, Phase.LOST)
    )
    drain = after.drain if in_drain else None
    deadline = None if drain is None else drain.deadline_unix_ms
    return Line(
        at_unix_ms=record.at_unix_ms,
        epoch=record.epoch,
        position=position,
        kind=kind_of(event),
        outcome=outcome,
        note=note,
        phase=after.phase,
        drain_id="" if drain is None else drain.drain_id,
        deadline_unix_ms=deadline,
        remaining_ms=None if deadline is None else deadline - record.at_unix_ms,
        event=event,
    )


def _final(fold: Fold, lines: Iterable[Line]) -> Final:
    state = fold.state
    outcomes = [line.outcome for line in lines]
    own = [line.event for line in lines if line.outcome == APPLIED]
    lost = [e.reason for e in own if isinstance(e, AttemptLost) and e.epoch == state.attempt.epoch]
    drains = dict.fromkeys(line.drain_id for line in lines if line.drain_id)
    return Final(
        job_id=state.attempt.job_id,
        epoch=state.attempt.epoch,
        phase=state.phase,
        lost=lost[0] if lost else "",
        drains=tuple(drains),
        committed=state.attempt.committed,
        healthy_step=state.attempt.healthy_step,
        exit_code=state.attempt.exit_code,
        fenced_by=state.attempt.fenced_by,
        requeue=state.attempt.requeue,
        record_count=fold.position + fold.skipped,
        event_counts={what: outcomes.count(what) for what in OUTCOMES},
    )


def _with_loss(replay: AttemptReplay, behind: AttemptReplay) -> AttemptReplay:
    """``behind``: the one that came next."""
    final, by = replay.final, behind.final.epoch
    found = [
        f"{line.event.reason} (found by epoch {by})"
        for line in behind.lines
        if line.outcome == APPLIED
        and isinstance(line.event, AttemptLost)
        and (behind.final.job_id, line.event.epoch) == (final.job_id, final.epoch)
    ]
    if not found or final.lost:
        return replay
    phase = final.phase if final.phase.over else Phase.LOST
    return replace(replay, final=replace(final, lost=found[0], phase=phase))
