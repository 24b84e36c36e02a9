"""A postmortem for people: what-if as text, Markdown for a ticket, one HTML file for a browser.

A log is not trusted: everything that comes from it is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from drainfsm.core.budget import Budget, Evidence
from drainfsm.core.text import printable
from drainfsm.views.page import TEXT_MAX, document, drawing, escaped, table
from drainfsm.views.postmortem import Postmortem
from drainfsm.views.table import day_and_time, in_seconds
from drainfsm.views.what_if import Decision

NO_DRAIN = "No drain in these records."


def what_if_text(found: Postmortem) -> Iterator[str]:
    """What each decision would have been, and the smallest window for a save."""
    for one in found.decisions:
        if one.other is None:
            continue
        yield f"At {in_seconds(one.at_ms)}, {one.kind}: {_would(one)}"
        yield f"  {_sum(one.other)}"
    if (window_ms := found.smallest_window_ms) is not None:
        yield f"The smallest window in which the rule would have held: {in_seconds(window_ms)}."
    elif found.decisions:
        yield "It was not the rule that spoke against the save: no window says what had saved it."
    else:
        yield "No decision on a save is on record: other settings change nothing here."


def markdown(found: Postmortem) -> Iterator[str]:
    """For an incident ticket."""
    yield f"## Drain {_md(found.drain_id)}: {_md(found.outcome)}"
    yield ""
    yield from _md_table(("", ""), _facts(found))
    yield ""
    yield "### Notices"
    yield ""
    rows = [
        (in_seconds(n.at_ms), n.identity, n.notice_class, n.cause, in_seconds(n.deadline_ms))
        for n in found.notices
    ]
    yield from _md_table(("at", "notice", "class", "cause", "deadline"), rows)
    for one in found.decisions:
        yield ""
        yield f"### {_md(one.kind)} at {in_seconds(one.at_ms)}"
        yield ""
        if one.reason:
            yield _md(one.reason)
            yield ""
        yield from _md_table(("term", "ms", "from"), _terms(one.recorded))
        yield ""
        yield f"{_sum(one.recorded)}"
        if one.wrong:
            yield ""
            yield f"**Recomputed, this does not add up: {_md(one.wrong)}**"
        if one.other is not None:
            yield ""
            yield f"Under other settings: {_would(one)} ({_sum(one.other)})"
    yield ""
    yield "### Phases"
    yield ""
    phases = [(p.name, in_seconds(p.from_ms), in_seconds(p.to_ms)) for p in found.phases]
    yield from _md_table(("up to", "from", "to"), phases)
    for line in (*_late(found), *(f"WARNING: {text}" for text in found.warnings)):
        yield ""
        yield f"**{_md(line)}**"


def page(found: Sequence[Postmortem]) -> str:
    """One HTML file that works from disk: no script, nothing fetched."""
    jobs = sorted({one.job_id for one in found})
    title = (
        f"Drains of {jobs[0] if len(jobs) == 1 else f'{len(jobs)} jobs'}" if jobs else "No drain"
    )
    body = "\n".join(article(one) for one in found) or f"<p>{NO_DRAIN}</p>"
    return document(title, body)


def _facts(found: Postmortem) -> list[tuple[str, str]]:
    day, clock = day_and_time(found.opened_unix_ms)
    lost = found.lost
    rows = [
        ("job", f"{found.job_id}, attempt {found.epoch}"),
        ("first notice", f"{day} {clock} UTC"),
        ("cause", found.cause),
        ("window", "" if found.window_ms is None else in_seconds(found.window_ms)),
        ("left before the deadline", _left(found.remaining_ms)),
        ("steps lost", "not known" if lost.steps is None else str(lost.steps)),
        ("work lost", in_seconds(lost.work_ms)),
    ]
    if lost.accelerator_count:
        hours = f"{lost.accelerator_hours:g} h on {lost.accelerator_count}"
        rows.append(("accelerators", hours))
    if (window_ms := found.smallest_window_ms) is not None:
        rows.append(("smallest window for a save", in_seconds(window_ms)))
    if (after := found.replacement) is not None:
        restored = "nothing" if after.restored_step is None else f"step {after.restored_step}"
        delay = "?" if after.requeue_delay_ms is None else in_seconds(after.requeue_delay_ms)
        rows.append(("replacement", f"attempt {after.epoch} after {delay}, restored {restored}"))
    return rows


def _left(remaining_ms: int | None) -> str:
    if remaining_ms is None:
        return "it is not over"
    late = f"{in_seconds(-remaining_ms)} LATE"
    return late if remaining_ms < 0 else in_seconds(remaining_ms)


def _terms(budget: Budget) -> list[tuple[str, str, str]]:
    def row(name: str, term: Evidence) -> tuple[str, str, str]:
        count = f"{term.sample_count} of {term.samples_needed} samples"
        return name, str(term.value_ms), f"{term.basis}, {count}"

    rows = [("remaining", str(budget.remaining_ms), f"skew {budget.clock_skew_ms} ms off")]
    rows += [row(name, term) for name, term in budget.terms]
    return [*rows, ("exit margin", str(budget.exit_margin_ms), "allowance")]


def _sum(budget: Budget) -> str:
    sign, word = (">", "fits") if budget.fits else ("<=", "does not fit")
    return f"remaining {budget.remaining_ms} ms {sign} needed {budget.needed_ms} ms: {word}"


def _would(one: Decision) -> str:
    assert one.other is not None
    if one.other.fits == one.recorded.fits:
        return "the same: " + ("the save fits" if one.other.fits else "the save does not fit")
    return "the save would have fitted" if one.other.fits else "the save would NOT have fitted"


def _late(found: Postmortem) -> Iterator[str]:
    for missing in found.late:
        yield (f"Late: {missing.name}, {missing.phase}, last completed step {missing.last_step}")


# --- Markdown -----------------------------------------------------------------------------------


def _md(text: str) -> str:
    """One line of plain text: nothing of it is markup."""
    plain = re.sub(r"\s+", " ", printable(text, chars_max=TEXT_MAX))
    return re.sub(r"([\\`*_{}\[\]<>#|~!])", r"\\\1", plain)


def _md_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(_md(cell) for cell in row) + " |"


# --- HTML ---------------------------------------------------------------------------------------


def article(found: Postmortem) -> str:
    """As HTML, for a page of several or of its own."""
    decisions = "".join(_decision(one) for one in found.decisions)
    notes = "".join(
        f'<p class="bad">{escaped(text)}</p>'
        for text in (*_late(found), *(f"WARNING: {one}" for one in found.warnings))
    )
    notices = [
        (in_seconds(n.at_ms), n.identity, n.notice_class, n.cause, in_seconds(n.deadline_ms))
        for n in found.notices
    ]
    phases = [(p.name, in_seconds(p.from_ms), in_seconds(p.to_ms)) for p in found.phases]
    text = "\n".join(escaped(line) for line in found.sentences)
    return (
        f"<article><h2>Drain {escaped(found.drain_id)}: {escaped(found.outcome)}</h2>"
        f"{notes}{table((), _facts(found))}<h3>Against the deadline</h3>{_gantt(found)}"
        f"{table(('up to', 'from', 'to'), phases)}<h3>Notices</h3>"
        f"{table(('at', 'notice', 'class', 'cause', 'deadline'), notices)}"
        f"{decisions}<h3>In sentences</h3><pre>{text}</pre></article>"
    )


def _decision(one: Decision) -> str:
    word = "good" if one.recorded.fits else "bad"
    wrong = other = ""
    if one.wrong:
        wrong = f'<p class="bad">Recomputed, this does not add up: {escaped(one.wrong)}</p>'
    if one.other is not None:
        other = f"<p>Under other settings: {escaped(_would(one))} ({escaped(_sum(one.other))})</p>"
    return (
        f"<h3>{escaped(one.kind)} at {escaped(in_seconds(one.at_ms))}</h3>"
        f"<p>{escaped(one.reason)}</p>"
        f"{table(('term', 'ms', 'from'), _terms(one.recorded))}"
        f'<p class="{word}">{escaped(_sum(one.recorded))}</p>{wrong}{other}'
    )


def _gantt(found: Postmortem) -> str:
    """Phases as bars, and the deadline as it moved: to the left, never to the right."""
    ends = [phase.to_ms for phase in found.phases] + [move.deadline_ms for move in found.deadlines]
    scale = 690 / max(1, *ends) if ends else 1.0
    marks = []
    for number, phase in enumerate(found.phases):
        y, x = 4 + 22 * number, 100 + phase.from_ms * scale
        width = max(1.5, (phase.to_ms - phase.from_ms) * scale)
        marks.append(
            f'<text x="92" y="{y + 13}" text-anchor="end">{escaped(phase.name)}</text>'
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="16" fill="var(--bar)"/>'
        )
    height = 8 + 22 * len(found.phases)
    marks.append(f'<text x="100" y="{height + 14}">0 s</text>')
    for move in found.deadlines:
        x = 100 + max(0, move.deadline_ms) * scale
        side = "end" if x > 300 else "start"
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="var(--bad)" '
            f'stroke-width="2"/><text x="{x:.1f}" y="{height + 14}" text-anchor="{side}">'
            f"deadline {in_seconds(move.deadline_ms)}</text>"
        )
    label = f"phases of drain {found.drain_id} against its deadline"
    return drawing(label, "".join(marks), width=800, height=height + 20)
