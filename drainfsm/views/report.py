"""A job's whole history in numbers: what notices, drains, losses and restarts did to it.

Computed from the log and nothing else, so that the same records give the same report anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from drainfsm.core.events import AttemptLost, CheckpointDrilled
from drainfsm.views.attempts import AttemptReport, Ending, Seen, attempt_report, see
from drainfsm.views.replay import AttemptLog, replay_job
from drainfsm.views.sources import SourceHealth, source_health


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    of: int
    share: float | None
    """None: there was nothing to count."""


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed. Percentiles are observed values (nearest rank), no estimates."""

    count: int
    p50_ms: int | None = None
    p95_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A notice source that could not tell at times, as one node heard it."""

    source: str
    node: int
    unknown_count: int
    unknown_ms: int
    unknown_now: bool


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    attempt_count: int
    unlogged_count: int
    """Attempts that must have been, by their numbers, and left no record in this log."""

    endings: dict[str, int]
    """Attempts by how they ended."""

    drains: dict[str, int]
    """Drains by outcome."""

    deadline_missed_count: int
    """Drains after whose deadline processes were still left."""

    missed_notice: Rate
    """Attempts lost without a notice in force, of all that ended by loss of capacity: lost, or
    drained. One that failed, finished or was superseded lost no capacity."""

    restart_healthy: Rate
    """Restarts in which every rank completed a step. One that is still starting does not count."""

    checkpoint_age: Durations
    """Of lost and failed attempts: last commit to last sign of life."""

    requeue_delay: Durations
    restore: Durations
    restore_refused_count: int
    """Attempts whose ranks ended in place of restoring."""

    restore_fallback_count: int
    """Attempts that restored something older than what was recorded, which was damaged."""

    restart_to_healthy: Durations
    save_durable: Durations
    save_commit: Durations
    work_lost_ms: int
    steps_lost: int
    """Of the attempts whose log tells how far the ranks were."""

    steps_lost_unknown_count: int
    """Attempts that ended and whose log does not tell it."""

    sources: tuple[SourceReport, ...]


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    at_unix_ms: int
    drill: CheckpointDrilled


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    attempts: tuple[AttemptReport, ...]
    totals: Totals
    drills: tuple[DrillReport, ...] | None = None
    """Restores that were rehearsed, from the checkpoint store; None: it was not asked."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    jobs: tuple[JobReport, ...]
    totals: Totals
    """Over all jobs."""


def report(logs: Sequence[AttemptLog], *, epoch: int | None = None) -> Report:
    """``epoch``: only that attempt of each job, with what its neighbours tell about it."""
    by_job: dict[str, list[Seen]] = {}
    for replay in replay_job(logs):
        by_job.setdefault(replay.final.job_id, []).append(see(replay))
    jobs: list[JobReport] = []
    chosen: list[Seen] = []
    for job_id, seen in by_job.items():
        attempts = [a for a in _attempts(seen) if epoch in (None, a.epoch)]
        seen = [one for one in seen if epoch in (None, one.replay.final.epoch)]
        chosen += seen
        unlogged = max(a.epoch for a in attempts) - len(attempts) if epoch is None else 0
        totals = _totals(attempts, seen, unlogged_count=unlogged)
        jobs.append(JobReport(job_id=job_id, attempts=tuple(attempts), totals=totals))
    everything = [attempt for job in jobs for attempt in job.attempts]
    unlogged = sum(job.totals.unlogged_count for job in jobs)
    return Report(jobs=tuple(jobs), totals=_totals(everything, chosen, unlogged_count=unlogged))


def with_drills(
    made: Report, drills: Sequence[tuple[int, CheckpointDrilled]], *, job_id: str
) -> Report:
    """The same with what the checkpoint store of that job has on record."""
    found = tuple(DrillReport(at_unix_ms=at, drill=drill) for at, drill in drills)
    jobs = tuple(
        msgspec.structs.replace(job, drills=found) if job.job_id == job_id else job
        for job in made.jobs
    )
    return msgspec.structs.replace(made, jobs=jobs)


def _attempts(seen: Sequence[Seen]) -> list[AttemptReport]:
    """With what only the neighbours tell: who came next and when, and the commit before."""
    last_signs = _last_signs(seen)
    reports = [
        attempt_report(one, last_seen_unix_ms=last_signs.get(one.replay.final.epoch))
        for one in seen
    ]
    last_commit: int | None = None
    for index, (attempt, one) in enumerate(zip(reports, seen, strict=True)):
        last_commit = max([last_commit or 0, *one.commits_unix_ms]) or None
        following = reports[index + 1] if index + 1 < len(reports) else None
        next_start = None
        if following is not None and following.epoch == attempt.epoch + 1:
            next_start = following.started_unix_ms
        reports[index] = _with_neighbours(attempt, next_start=next_start, last_commit=last_commit)
    return reports


def _with_neighbours(
    attempt: AttemptReport, *, next_start: int | None, last_commit: int | None
) -> AttemptReport:
    failed = attempt.ending in (Ending.LOST, Ending.FAILED)
    age_from = last_commit if failed else None
    return msgspec.structs.replace(
        attempt,
        requeue_delay_ms=_between(attempt.ended_unix_ms, next_start),
        checkpoint_age_ms=_between(age_from, attempt.ended_unix_ms),
        checkpoint_age_ms_max=_between(age_from, next_start),
    )


def _between(start_unix_ms: int | None, end_unix_ms: int | None) -> int | None:
    if start_unix_ms is None or end_unix_ms is None:
        return None
    return max(0, end_unix_ms - start_unix_ms)


def _last_signs(seen: Iterable[Seen]) -> dict[int, int]:
    """By epoch: the last sign of life that a later attempt wrote down."""
    return {
        line.event.epoch: line.event.last_seen_unix_ms
        for one in seen
        for line in one.lines
        if isinstance(line.event, AttemptLost) and line.event.last_seen_unix_ms is not None
    }


def _totals(
    attempts: Sequence[AttemptReport], seen: Sequence[Seen], *, unlogged_count: int
) -> Totals:
    drains = [drain for attempt in attempts for drain in attempt.drains]
    over = [attempt for attempt in attempts if attempt.ending is not Ending.OPEN]
    by_capacity = [a for a in over if a.ending in (Ending.LOST, Ending.DRAINED)]
    restarts = [
        a
        for a in attempts
        if a.epoch > 1 and (a.healthy_after_ms is not None or a.ending is not Ending.OPEN)
    ]
    samples = [sample for one in seen for sample in one.samples]
    return Totals(
        attempt_count=len(attempts),
        unlogged_count=unlogged_count,
        endings=_counted(a.ending.value for a in attempts),
        drains=_counted(drain.outcome for drain in drains),
        deadline_missed_count=sum((drain.remaining_ms or 0) < 0 for drain in drains),
        missed_notice=_rate(sum(not a.noticed for a in by_capacity), len(by_capacity)),
        restart_healthy=_rate(sum(a.healthy_after_ms is not None for a in restarts), len(restarts)),
        checkpoint_age=durations(a.checkpoint_age_ms for a in attempts),
        requeue_delay=durations(a.requeue_delay_ms for a in attempts),
        restore=durations(a.restore_ms for a in attempts),
        restore_refused_count=sum(bool(a.restore_refused) for a in attempts),
        restore_fallback_count=sum(bool(a.restored_in_place_of) for a in attempts),
        restart_to_healthy=durations(a.healthy_after_ms for a in restarts),
        save_durable=durations(sample.durable_ms for sample in samples),
        save_commit=durations(sample.commit_ms for sample in samples),
        work_lost_ms=sum(a.work_lost_ms for a in attempts),
        steps_lost=sum(a.steps_lost or 0 for a in over),
        steps_lost_unknown_count=sum(a.steps_lost is None for a in over),
        sources=_sources(seen),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _rate(count: int, of: int) -> Rate:
    return Rate(count=count, of=of, share=count / of if of else None)


def durations(values_ms: Iterable[int | None]) -> Durations:
    """``None`` among the values: not observed, not counted."""
    known = sorted(value for value in values_ms if value is not None)
    if not known:
        return Durations(count=0)

    def at(percent: int) -> int:
        return known[-(-percent * len(known) // 100) - 1]

    return Durations(
        count=len(known), p50_ms=at(50), p95_ms=at(95), p99_ms=at(99), max_ms=known[-1]
    )


def _sources(seen: Sequence[Seen]) -> tuple[SourceReport, ...]:
    found: dict[tuple[str, int], SourceReport] = {}
    for one in seen:
        for (source, node), health in source_health(one.replay.counted).items():
            before = found.get((source, node))
            found[source, node] = _added(before, source, node, health)
    return tuple(found[place] for place in sorted(found))


def _added(
    before: SourceReport | None, source: str, node: int, health: SourceHealth
) -> SourceReport:
    """``unknown_now`` is what the newest attempt says."""
    return SourceReport(
        source=source,
        node=node,
        unknown_count=health.unknown_count + (before.unknown_count if before else 0),
        unknown_ms=health.unknown_ms + (before.unknown_ms if before else 0),
        unknown_now=health.unknown_since_unix_ms is not None,
    )
