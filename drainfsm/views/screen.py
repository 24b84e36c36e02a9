"""The live view of a terminal: jobs, the chosen one's countdown, ranks, sources, events.

Builds text for a size; the command decides who watches, and from where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.text import Text

from drainfsm.core.budget import Budget
from drainfsm.core.deadline import budget_of
from drainfsm.core.state import State
from drainfsm.core.text import printable, span
from drainfsm.views.attempts import GOOD
from drainfsm.views.measures import DrainEnd
from drainfsm.views.projections import (
    DECISIONS,
    AttemptProjection,
    EventLine,
    JobProjection,
    Projection,
)
from drainfsm.views.status import Outlook, Status, clock_ahead_ms, headline, outlook
from drainfsm.views.table import day_and_time, describe

JOB_ROWS_MAX = 8
LATE_SHOWN_MAX = 3
DRAINS_SHOWN = 2
BLIND_SHOWN = 3
FILTERS = ("decisions", "all", "notices")
STYLES = {
    Outlook.FITS: "green",
    Outlook.COMMITTED: "green",
    Outlook.DOES_NOT_FIT: "red",
    Outlook.GIVEN_UP: "red",
}


TERM_STYLES = {"quiesce": "cyan", "durable": "blue", "commit": "magenta"}


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What the viewer chose."""

    job_id: str = ""
    """It stays chosen when the order changes. Empty, or not there: the most urgent one."""

    filter: str = "decisions"


def row_of(jobs: Sequence[JobProjection], selection: Selection) -> int:
    """Where the chosen job stands in the list."""
    rows = (row for row, job in enumerate(jobs) if job.job_id == selection.job_id)
    return next(rows, 0)


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """Where the view comes from, and how fresh it is."""

    source: str
    stale_since_unix_ms: int | None = None
    """The source cannot be reached since then."""

    error: str = ""


def screen(
    projection: Projection,
    *,
    feed: Feed,
    selection: Selection,
    now_unix_ms: int,
    width: int,
    height: int,
) -> list[Text]:
    """At most ``height`` lines of at most ``width`` cells."""
    jobs = projection.by_urgency()
    lines = [_title(projection, feed, now_unix_ms)]
    if not jobs:
        lines.append(Text("no records yet", style="dim"))
    row = row_of(jobs, selection)
    first = max(0, min(row - JOB_ROWS_MAX // 2, len(jobs) - JOB_ROWS_MAX))
    shown = jobs[first : first + min(JOB_ROWS_MAX, max(1, height // 3))]
    for number, job in enumerate(shown, start=first):
        status = projection.status(job, now_unix_ms=now_unix_ms)
        lines.append(_job(status, job, now_unix_ms, chosen=number == row))
    if jobs:
        lines += _detail(jobs[row], now_unix_ms=now_unix_ms, width=width)
    footer = Text(
        f"q quit  ↑↓ choose  e explain  f filter: {selection.filter}", style="dim", end=""
    )
    room = height - len(lines) - 1
    if jobs and room > 0:
        lines += _tail(jobs[row], selection, room)
    lines = [*lines[: height - 1], footer]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _title(projection: Projection, feed: Feed, now_unix_ms: int) -> Text:
    """What is wrong first: a narrow terminal cuts the end."""
    text = Text(f"drainfsm watch  {day_and_time(now_unix_ms)[1][:8]} UTC", "bold")
    if feed.stale_since_unix_ms is not None:
        age = span(max(0, now_unix_ms - feed.stale_since_unix_ms))
        since = day_and_time(feed.stale_since_unix_ms)[1][:8]
        why = f" ({printable(feed.error)})" if feed.error else ""
        text.append(f"  STALE for {age}, since {since}{why}", "bold red")
    if projection.unreadable_count:
        text.append(f"  {projection.unreadable_count} unreadable", "yellow")
    return text.append(f"  {feed.source}", "dim")


def _job(status: Status, job: JobProjection, now_unix_ms: int, *, chosen: bool) -> Text:
    name = f"{printable(status.job_id)}/{status.epoch}"
    text = Text(f"{'>' if chosen else ' '} {name}  ", "bold" * chosen)
    style = ""
    if status.remaining_ms is not None:
        style = "red" if status.remaining_ms < 30_000 else "yellow"
    text.append(headline(status), style)
    if job.measures.committed_unix_ms is not None:
        text.append(f"  commit {span(max(0, now_unix_ms - job.measures.committed_unix_ms))} ago")
    elif status.committed_step is None:
        text.append("  nothing committed", "yellow")
    if ahead_ms := clock_ahead_ms(status):
        text.append(f"  its clock is {span(ahead_ms)} ahead", "yellow")
    if status.blind:
        text.append(f"  {len(status.blind)} source(s) blind", "red")
    return text


def _detail(job: JobProjection, *, now_unix_ms: int, width: int) -> Iterator[Text]:
    newest = job.newest
    yield Text("─" * width, "dim")
    if newest.state.phase.draining and newest.opened_unix_ms is not None:
        budget = budget_of(newest.state, now_unix_ms=now_unix_ms)
        good = outlook(newest.state, budget)
        yield _bar(budget, good, opened_unix_ms=newest.opened_unix_ms, width=width)
        yield _budget(budget, good)
        yield _ranks(newest.state, newest)
    yield from _blind(newest, now_unix_ms)
    for ended in list(job.measures.finished)[-DRAINS_SHOWN:]:
        yield _ended(ended)


def _bar(budget: Budget, good: Outlook, *, opened_unix_ms: int, width: int) -> Text:
    """The window: spent, needed by phase, left."""
    window_ms = max(1, budget.deadline_unix_ms - opened_unix_ms)
    room = max(10, width - 24)
    spent_ms = min(window_ms, max(0, budget.now_unix_ms - opened_unix_ms))
    parts: list[tuple[str, int, str]] = [("█", spent_ms, "dim")]
    parts += [("▓", term.value_ms, TERM_STYLES[name]) for name, term in budget.terms]
    parts.append(("▓", budget.exit_margin_ms, "white"))
    left_ms = budget.deadline_unix_ms - budget.now_unix_ms
    text, used = Text(f"{span(max(0, left_ms)):>9} left  "), 0
    for char, value_ms, style in parts:
        cells = min(room - used, round(room * value_ms / window_ms))
        text.append(char * cells, style)
        used += cells
    text.append("░" * (room - used), STYLES[good])
    return text


def _budget(budget: Budget, good: Outlook) -> Text:
    terms = [f"{name} {span(term.value_ms)}" for name, term in budget.terms]
    terms.append(f"exit {span(budget.exit_margin_ms)}")
    text = Text(f"  needs {' + '.join(terms)} = {span(budget.needed_ms)}: the save ")
    word = good if good in (Outlook.FITS, Outlook.DOES_NOT_FIT) else f"is {good}"
    return text.append(word, STYLES[good])


def _ranks(state: State, attempt: AttemptProjection) -> Text:
    stop, world_size = state.stop, state.attempt.world_size
    if attempt.late:
        text = Text(f"  {len(attempt.late)} of {world_size} ranks late: ", "red")
        names = [
            f"rank {one.rank} on node {one.node} ({printable(one.phase)}, step {one.last_step})"
            for one in attempt.late[:LATE_SHOWN_MAX]
        ]
        return text.append("; ".join(names))
    if stop is None:
        return Text(f"  {world_size} ranks train; no stop step is agreed")
    held = sum(len(one.ranks) for one in stop.nodes if one.node not in stop.waiting)
    text = Text(f"  {held} of {world_size} ranks hold at step {stop.step}")
    if stop.waiting:
        waiting = ", ".join(str(node) for node in sorted(stop.waiting)[:8])
        text.append(f"; waiting for node {waiting}", "yellow")
    return text


def _blind(attempt: AttemptProjection, now_unix_ms: int) -> Iterator[Text]:
    found = attempt.sources.blind()
    for blind in found[:BLIND_SHOWN]:
        age = span(max(0, now_unix_ms - blind.since_unix_ms))
        yield Text(
            f"  source {printable(blind.source)} on node {blind.node} cannot tell for {age}: "
            f"{printable(blind.detail)}",
            "red",
        )
    if len(found) > BLIND_SHOWN:
        yield Text(f"  and {len(found) - BLIND_SHOWN} more that cannot tell", "red")


def _ended(drain: DrainEnd) -> Text:
    at = day_and_time(drain.opened_unix_ms)[1][:8]
    text = Text(f"  drain {printable(drain.drain_id)} ({at}, {printable(drain.cause)}): ")
    text.append(drain.outcome, "" if drain.outcome in GOOD else "red")
    if drain.remaining_ms is None:
        return text
    if drain.remaining_ms < 0:
        return text.append(f", {span(-drain.remaining_ms)} PAST the deadline", "red")
    return text.append(f", {span(drain.remaining_ms)} before the deadline", "dim")


def _tail(job: JobProjection, selection: Selection, room: int) -> list[Text]:
    lines = job.events if selection.filter == "all" else job.decisions
    chosen = [line for line in lines if _wanted(line, selection.filter)]
    return [_event(line) for line in chosen[-room:]]


def _wanted(line: EventLine, wanted: str) -> bool:
    if wanted == "notices":
        return "notice" in line.kind or "source" in line.kind or line.kind == "deadline_shortened"
    return True


def _event(line: EventLine) -> Text:
    text = Text(f"{day_and_time(line.at_unix_ms)[1][:12]} {line.epoch:>3} ")
    text.append(printable(line.kind), "bold" if line.kind in DECISIONS else "")
    if line.note:
        text.append(f"  [{printable(line.note)}]", "red")
    return text.append(f"  {describe(line.event)}", "dim")


def plain(lines: Sequence[Text]) -> str:
    """Without colours, for ``--once``."""
    return "\n".join(line.plain.rstrip() for line in lines)
