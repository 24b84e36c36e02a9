"""What browsers are told, as JSON. Instants, no ages: a browser counts by itself.

Text of others is made printable here; browsers put it in as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from drainfsm.core.budget import Budget
from drainfsm.core.deadline import budget_of
from drainfsm.core.state import Phase, State
from drainfsm.core.text import printable
from drainfsm.views.measures import DrainEnd
from drainfsm.views.projections import AttemptProjection, EventLine, JobProjection
from drainfsm.views.sources import BlindSource
from drainfsm.views.status import outlook
from drainfsm.views.table import describe

EVENTS_SHOWN = 200
TEXT_MAX = 400


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the fleet."""

    job_id: str
    epoch: int
    phase: str
    running: bool
    world_size: int
    node_count: int
    healthy: bool
    committed_step: int | None
    committed_unix_ms: int | None
    drain_id: str | None
    opened_unix_ms: int | None
    deadline_unix_ms: int | None
    """Of the open drain."""

    outlook: str | None
    """Of its save: ``fits``, ``does not fit``, ``committed`` or ``given up``."""

    exit_code: int | None
    fenced_by: int | None
    last_unix_ms: int | None
    blind_count: int
    started_count: int
    healthy_count: int
    """Attempts that were started, and those that got to a healthy step."""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value_ms: int
    basis: str


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    terms: tuple[Term, ...]
    needed_ms: int
    remaining_ms: int
    clock_skew_ms: int


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    ranks: tuple[int, ...]
    state: str
    """``waiting`` or ``holding``."""


class LateView(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    node: int
    phase: str
    last_step: int | None


class NoticeView(msgspec.Struct, frozen=True, kw_only=True):
    identity: str
    notice_class: str
    cause: str
    deadline_unix_ms: int
    withdrawn: bool


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    at_unix_ms: int
    epoch: int
    kind: str
    text: str
    note: str


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One job as its own page shows it."""

    row: JobRow
    now_unix_ms: int
    stop_step: int | None
    budget: BudgetView | None
    marks: tuple[tuple[str, int], ...]
    """Milestones of the newest drain, and when it came to them."""

    deadlines: tuple[tuple[int, int], ...]
    nodes: tuple[NodeRow, ...]
    late: tuple[LateView, ...]
    blind: tuple[BlindSource, ...]
    notices: tuple[NoticeView, ...]
    drains: tuple[DrainEnd, ...]
    """That are over, the newest first."""

    decisions: tuple[EventView, ...]
    events: tuple[EventView, ...]


def row_of(job: JobProjection, *, now_unix_ms: int) -> JobRow:
    newest = job.newest
    state, attempt = newest.state, newest.state.attempt
    drain = state.drain if state.phase.active else None
    over = attempt.exit_code is not None or attempt.fenced_by is not None
    return JobRow(
        job_id=printable(job.job_id),
        epoch=attempt.epoch,
        phase=state.phase.value,
        running=not over and state.phase is not Phase.LOST,
        world_size=attempt.world_size,
        node_count=attempt.node_count,
        healthy=attempt.healthy_step is not None,
        committed_step=None if attempt.committed is None else attempt.committed.step,
        committed_unix_ms=job.measures.committed_unix_ms,
        drain_id=None if drain is None else printable(drain.drain_id),
        opened_unix_ms=None if drain is None else newest.opened_unix_ms,
        deadline_unix_ms=None if drain is None else drain.deadline_unix_ms,
        outlook=None if drain is None else _outlook(state, now_unix_ms),
        exit_code=attempt.exit_code,
        fenced_by=attempt.fenced_by,
        last_unix_ms=newest.last_unix_ms,
        blind_count=sum(job.measures.blind(attempt.epoch).values()),
        started_count=job.measures.started_count,
        healthy_count=sum(job.measures.to_healthy.counts),
    )


def _outlook(state: State, now_unix_ms: int) -> str:
    return outlook(state, budget_of(state, now_unix_ms=now_unix_ms)).value


def detail_of(job: JobProjection, *, now_unix_ms: int) -> JobDetail:
    newest = job.newest
    state, drain = newest.state, newest.state.drain
    budget = budget_of(state, now_unix_ms=now_unix_ms) if state.phase.active else None
    return JobDetail(
        row=row_of(job, now_unix_ms=now_unix_ms),
        now_unix_ms=now_unix_ms,
        stop_step=None if drain is None or drain.stop is None else drain.stop.step,
        budget=None if budget is None else _budget(budget),
        marks=tuple(newest.marks.items()),
        deadlines=tuple(newest.deadlines),
        nodes=tuple(_nodes(newest)),
        late=tuple(
            LateView(
                rank=one.rank, node=one.node, phase=printable(one.phase), last_step=one.last_step
            )
            for one in newest.late
        ),
        blind=tuple(_blind(newest)),
        notices=tuple(_notices(newest)),
        drains=tuple(_ended(one) for one in reversed(job.measures.finished)),
        decisions=tuple(_events(job.decisions)),
        events=tuple(_events(job.events)),
    )


def _budget(budget: Budget) -> BudgetView:
    terms = [
        Term(
            name=name,
            value_ms=term.value_ms,
            basis=f"{term.basis}, {term.sample_count} of {term.samples_needed} samples",
        )
        for name, term in budget.terms
    ]
    terms.append(Term(name="exit margin", value_ms=budget.exit_margin_ms, basis="allowance"))
    return BudgetView(
        terms=tuple(terms),
        needed_ms=budget.needed_ms,
        remaining_ms=budget.remaining_ms,
        clock_skew_ms=budget.clock_skew_ms,
    )


def _nodes(attempt: AttemptProjection) -> Iterator[NodeRow]:
    drain = attempt.state.drain
    if drain is None or drain.stop is None:
        return
    waiting = drain.stop.waiting
    for one in drain.stop.nodes:
        state = "waiting" if one.node in waiting else "holding"
        yield NodeRow(node=one.node, ranks=one.ranks, state=state)


def _blind(attempt: AttemptProjection) -> Iterator[BlindSource]:
    for one in attempt.sources.blind():
        yield msgspec.structs.replace(
            one,
            source=printable(one.source),
            detail=printable(one.detail, chars_max=TEXT_MAX),
        )


def _notices(attempt: AttemptProjection) -> Iterator[NoticeView]:
    drain = attempt.state.drain
    for identity, held in sorted({} if drain is None else drain.notices.items()):
        yield NoticeView(
            identity=printable(identity),
            notice_class=printable(held.notice.notice_class),
            cause=printable(held.notice.cause),
            deadline_unix_ms=held.earliest_unix_ms,
            withdrawn=held.withdrawn,
        )


def _ended(one: DrainEnd) -> DrainEnd:
    return msgspec.structs.replace(one, drain_id=printable(one.drain_id))


def _events(lines: Iterable[EventLine]) -> Iterator[EventView]:
    for line in list(lines)[-EVENTS_SHOWN:]:
        yield EventView(
            at_unix_ms=line.at_unix_ms,
            epoch=line.epoch,
            kind=printable(line.kind),
            text=printable(describe(line.event), chars_max=TEXT_MAX),
            note=printable(line.note),
        )
