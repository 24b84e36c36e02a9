"""A report over many jobs as one HTML file, with plots that are drawn here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drainfsm.views.fleet import Bin, FleetReport
from drainfsm.views.page import document, drawing, escaped, table
from drainfsm.views.report_text import counts_text, durations_text, rate_text
from drainfsm.views.table import day_and_time, in_seconds
from drainfsm.views.tally import Totals

WIDTH, ROW, LABELS = 800, 22, 190
DAYS_MAX = 366

Bar = tuple[str, float, str, str]
"""Label, value, what is written beside it, and its class: ``bar``, ``good`` or ``bad``."""


def page(report: FleetReport) -> str:
    totals = report.totals
    body = [
        f"<p>{report.job_count} jobs, {totals.attempt_count} attempts.</p>",
        *([f'<p class="bad">{escaped(report.damage)}</p>'] if report.damage else ()),
        "<h2>What capacity costs</h2>",
        table(("measure", "value"), _measures(totals)),
        "<h2>Left before the deadline</h2>",
        "<p>From no process left to the deadline of each drain; below 0 it was missed.</p>",
        bars("drains by time left before the deadline", _headroom(report.headroom_bins)),
        "<h2>Causes</h2>",
        bars("drains by cause", _causes(report)),
        table(("cause", "outcomes"), [(c, counts_text(o)) for c, o in report.causes.items()]),
        "<h2>Phases by world size</h2>",
        *_phases(report),
        "<h2>Losses over time</h2>",
        _days(report),
        "<h2>Jobs that lost most</h2>",
        bars(
            "work lost by job",
            [
                (one.job_id, one.work_lost_ms, in_seconds(one.work_lost_ms), "bad")
                for one in report.costliest
            ],
        ),
    ]
    return document("Drains and restarts", "\n".join(body))


def bars(label: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars; the numbers stand beside them, so that nothing is told by colour alone."""
    if not rows:
        return "<p>None.</p>"
    scale = (WIDTH - LABELS - 150) / max(1.0, *(value for _, value, _, _ in rows))
    drawn = []
    for number, (name, value, text, kind) in enumerate(rows):
        y, width = number * ROW, max(1.0 if value else 0.0, value * scale)
        drawn.append(
            f'<text x="{LABELS - 8}" y="{y + 15}" text-anchor="end">{escaped(name[:28])}</text>'
            f'<rect x="{LABELS}" y="{y + 3}" width="{width:.1f}" height="16" '
            f'fill="var(--{kind})"/>'
            f'<text x="{LABELS + width + 6:.1f}" y="{y + 15}">{escaped(text)}</text>'
        )
    return drawing(label, "".join(drawn), width=WIDTH, height=len(rows) * ROW + 4)


def _measures(totals: Totals) -> Iterator[tuple[str, str]]:
    yield "lost without notice", f"{rate_text(totals.missed_notice)} that lost capacity"
    yield "checkpoint age at failure", durations_text(totals.checkpoint_age)
    yield "requeue delay", durations_text(totals.requeue_delay)
    yield "restore", durations_text(totals.restore)
    yield "restarts that got healthy", rate_text(totals.restart_healthy)
    yield "restart to healthy step", durations_text(totals.restart_to_healthy)
    yield "attempts by ending", counts_text(totals.endings)
    yield "drains by outcome", counts_text(totals.drains)
    yield "deadlines missed", str(totals.deadline_missed_count)
    yield "restores refused, fallen back", _pair(totals)
    yield "save, durable", durations_text(totals.save_durable)
    yield "save, commit", durations_text(totals.save_commit)
    yield "work lost", f"{in_seconds(totals.work_lost_ms)}, {totals.steps_lost} steps"


def _pair(totals: Totals) -> str:
    return f"{totals.restore_refused_count}, {totals.restore_fallback_count}"


def _headroom(bins: Sequence[Bin]) -> list[Bar]:
    used = [number for number, one in enumerate(bins) if one.count]
    if not used:
        return []
    rows: list[Bar] = []
    for number in range(used[0], used[-1] + 1):
        below, before = bins[number].below_ms, bins[number - 1].below_ms if number else None
        if before is None:
            name = f"below {_short(below)}"
        else:
            name = f"{_short(before)} to {_short(below)}" if below is not None else "more"
        missed = below is not None and below <= 0
        count = bins[number].count
        rows.append((name, count, str(count), "bad" if missed else "good"))
    return rows


def _causes(report: FleetReport) -> list[Bar]:
    sums = {cause: sum(outcomes.values()) for cause, outcomes in report.causes.items()}
    ordered = sorted(sums.items(), key=lambda one: (-one[1], one[0]))
    return [(cause, count, str(count), "bar") for cause, count in ordered]


def _phases(report: FleetReport) -> Iterator[str]:
    for one in report.phases:
        size = f"World size {one.world_size or 'not known'}"
        yield f"<h3>{size}, {one.drain_count} drains</h3>"
        rows: list[Bar] = []
        for phase, found in one.phases.items():
            for name, value in (
                ("p50", found.p50_ms),
                ("p95", found.p95_ms),
                ("max", found.max_ms),
            ):
                rows.append((f"{phase} {name}", value or 0, in_seconds(value or 0), "bar"))
        yield bars(f"phases of drains, {size}", rows)


def _days(report: FleetReport) -> str:
    rows = [
        (
            day_and_time(day.from_unix_ms)[0],
            day.work_lost_ms,
            f"{in_seconds(day.work_lost_ms)}; {day.lost_count} of {day.ended_count} lost",
            "bad",
        )
        for day in report.days[-DAYS_MAX:]
    ]
    return bars("work lost by day", rows)


def _short(value_ms: int | None) -> str:
    return "" if value_ms is None else f"{value_ms / 1_000:g} s"
