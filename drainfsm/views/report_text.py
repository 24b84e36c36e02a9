"""A report as plain text, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from drainfsm.core.text import span
from drainfsm.store.rehearsals import DrainRehearsed
from drainfsm.views.attempts import AttemptReport
from drainfsm.views.fleet import FleetReport
from drainfsm.views.report import DrillReport, Report
from drainfsm.views.table import WIDTH, day_and_time, in_seconds
from drainfsm.views.tally import Durations, Rate, Totals

LABEL_COLUMNS = 28


def report_text(report: Report, *, now_unix_ms: int | None = None) -> Iterator[str]:
    """``now_unix_ms``: ages are told, too."""
    for job in report.jobs:
        yield f"job {job.job_id}"
        for attempt in job.attempts:
            yield from textwrap.wrap(_attempt(attempt), WIDTH, subsequent_indent=" " * 6)
        yield ""
        yield from _totals(job.totals)
        if job.drills is not None:
            yield from _drills(job.drills)
            nobody = "none: nobody knows whether a restore would work"
            at = job.last_good_drill_unix_ms
            yield from _row("last good drill", _last_good(at, now_unix_ms) or nobody)
        if job.rehearsals is not None:
            yield from _rehearsals(job.rehearsals)
            nobody = "none: nobody knows whether a drain would work"
            at = job.last_good_rehearsal_unix_ms
            yield from _row("last good rehearsal", _last_good(at, now_unix_ms) or nobody)
        yield ""
    if len(report.jobs) > 1:
        yield "all jobs"
        yield from _totals(report.totals)


def fleet_text(report: FleetReport) -> Iterator[str]:
    yield f"{report.job_count} jobs"
    yield from _totals(report.totals)
    yield from _row("left before the deadline", durations_text(report.headroom))
    for cause, outcomes in report.causes.items():
        yield from _row(f"drains: {cause}", counts_text(outcomes))
    for one in report.phases:
        size = f"world size {one.world_size or '?'}"
        for phase, found in one.phases.items():
            yield from _row(f"{phase}, {size}", durations_text(found))
    for job in report.costliest:
        lost = f"{_span(job.work_lost_ms)} in {job.attempt_count} attempts"
        yield from _row(f"lost by {job.job_id}", lost)


def _attempt(attempt: AttemptReport) -> str:
    parts = [f"  {attempt.epoch:>3} {_when(attempt.started_unix_ms)}"]
    reason = f" ({attempt.reason})" if attempt.reason else ""
    parts.append(f"{attempt.ending.value}{reason}")
    parts += _restores(attempt)
    if attempt.healthy_after_ms is not None:
        what = "healthy" if attempt.got_healthy else "first step"
        parts.append(f"{what} after {_span(attempt.healthy_after_ms)}")
    elif attempt.ended_unix_ms is not None:
        parts.append("never healthy")
    parts += _failed_saves(attempt)
    parts += [f"drain {drain.outcome}" for drain in attempt.drains]
    if attempt.checkpoint_age_ms is not None:
        parts.append(f"last commit {_range(attempt)} before the loss")
    if attempt.work_lost_ms:
        steps = "" if attempt.steps_lost is None else f", {attempt.steps_lost} steps"
        parts.append(f"work lost {_span(attempt.work_lost_ms)}{steps}")
    if attempt.requeue_delay_ms is not None:
        parts.append(f"next attempt after {_span(attempt.requeue_delay_ms)}")
    return "; ".join(parts)


def _restores(attempt: AttemptReport) -> Iterator[str]:
    if attempt.restored_step is not None:
        yield f"restored step {attempt.restored_step} in {_span(attempt.restore_ms)}"
    for damaged in attempt.restored_in_place_of:
        yield f"instead of {damaged.generation_id} ({damaged.reason})"
    if attempt.not_restored:
        yield f"started anew: {', '.join(attempt.not_restored)}"
    for refused in attempt.restore_refused:
        yield f"refused {refused.generation_id} ({refused.error}: {refused.reason})"


def _failed_saves(attempt: AttemptReport) -> Iterator[str]:
    count = attempt.failed_save_count
    if attempt.saves_nothing:
        yield f"NOTHING SAVED: all {count} saves failed, at last {attempt.save_failure}"
    elif count:
        total = count + attempt.commit_count
        yield f"{count} of {total} saves failed, at last {attempt.save_failure}"


def _range(attempt: AttemptReport) -> str:
    low, high = attempt.checkpoint_age_ms, attempt.checkpoint_age_ms_max
    return _span(low) if high is None or high == low else f"{_span(low)} to {_span(high)}"


def _totals(totals: Totals) -> Iterator[str]:
    rows = [
        ("attempts", _attempts(totals)),
        ("lost without notice", rate_text(totals.missed_notice) + " that lost capacity"),
        ("checkpoint age at failure", durations_text(totals.checkpoint_age)),
        ("requeue delay", durations_text(totals.requeue_delay)),
        ("restore", durations_text(totals.restore)),
        ("restarts that got healthy", rate_text(totals.restart_healthy)),
        ("drains", counts_text(totals.drains)),
        ("deadlines missed", str(totals.deadline_missed_count)),
        ("restores refused", _refused(totals)),
        ("restart to healthy step", durations_text(totals.restart_to_healthy)),
        ("saves", _saves(totals)),
        ("save, durable", durations_text(totals.save_durable)),
        ("save, commit", durations_text(totals.save_commit)),
        ("work lost", _lost(totals)),
        ("sources that could not tell", _sources(totals)),
    ]
    for label, text in rows:
        yield from _row(label, text)


def _drills(drills: tuple[DrillReport, ...]) -> Iterator[str]:
    failed = sum(one.drill.outcome != "verified" for one in drills)
    text = f"{len(drills)}, {failed} failed"
    if drills:
        last = drills[-1]
        text += f"; last {_when(last.at_unix_ms)}: {last.drill.generation_id} {last.drill.outcome}"
        text += f" ({last.drill.verification})"
    yield from _row("restores rehearsed", text)


def _rehearsals(rehearsals: tuple[DrainRehearsed, ...]) -> Iterator[str]:
    """A scenario that fails now is named, one that passes again is not."""
    newest = {one.scenario: one for one in rehearsals}
    failing = [f"{one.scenario} ({one.wrong})" for one in newest.values() if not one.passed]
    text = f"{len(rehearsals)}, of {len(newest)} scenarios"
    yield from _row(
        "drains rehearsed", f"{text}; failing: {', '.join(failing)}" if failing else text
    )


def _last_good(at: int | None, now_unix_ms: int | None) -> str:
    """Empty: there was none."""
    if at is None:
        return ""
    ago = "" if now_unix_ms is None else f", {age(now_unix_ms - at)} ago"
    return _when(at) + ago


def age(value_ms: int) -> str:
    """``3.5 days``, or shorter as ``span``."""
    days = value_ms / 86_400_000
    return f"{days:.1f} days" if days >= 2 else span(max(0, value_ms))


def _row(label: str, text: str) -> Iterator[str]:
    line = f"  {label:{LABEL_COLUMNS}}{text}"
    yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * (LABEL_COLUMNS + 2))


def _attempts(totals: Totals) -> str:
    more = f"; {totals.unlogged_count} more left no record here" if totals.unlogged_count else ""
    return f"{totals.attempt_count}: {counts_text(totals.endings)}{more}"


def counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def rate_text(rate: Rate) -> str:
    share = "" if rate.share is None else f" ({rate.share:.1%})"
    return f"{rate.count} of {rate.of}{share}"


def durations_text(found: Durations) -> str:
    if not found.count:
        return "never observed"
    parts = (("p50", found.p50_ms), ("p95", found.p95_ms), ("p99", found.p99_ms))
    texts = [f"{name} {_span(value)}" for name, value in (*parts, ("max", found.max_ms))]
    return f"{', '.join(texts)} (of {found.count})"


def _refused(totals: Totals) -> str:
    return (
        f"{totals.restore_refused_count} attempts ended so, "
        f"{totals.restore_fallback_count} fell back"
    )


def _saves(totals: Totals) -> str:
    nothing = totals.saves_nothing_count
    more = f"; all failed in {nothing} attempts" if nothing else ""
    return f"{totals.save_count} committed, {totals.failed_save_count} failed{more}"


def _lost(totals: Totals) -> str:
    unknown = totals.steps_lost_unknown_count
    more = f" and those of {unknown} attempts whose log does not tell" if unknown else ""
    return f"{_span(totals.work_lost_ms)}, {totals.steps_lost} steps{more}"


def _sources(totals: Totals) -> str:
    texts = [
        f"{source.source} on node {source.node}: {source.unknown_count} times, "
        f"{_span(source.unknown_ms)}" + (", and now" if source.unknown_now else "")
        for source in totals.sources
    ]
    return "; ".join(texts) or "none"


def _when(unix_ms: int | None) -> str:
    return "(start unknown)" if unix_ms is None else " ".join(day_and_time(unix_ms))


def _span(value_ms: int | None) -> str:
    return "unknown" if value_ms is None else in_seconds(value_ms)
