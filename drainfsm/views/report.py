"""A job's whole history in numbers: what notices, drains, losses and restarts did to it.

Computed from the log and nothing else, so that the same records give the same report anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from drainfsm.core.events import AttemptLost, CheckpointDrilled
from drainfsm.core.words import DrillOutcome
from drainfsm.store.rehearsals import DrainRehearsed
from drainfsm.views.attempts import AttemptReport, Ending, Seen, attempt_report, see
from drainfsm.views.replay import AttemptLog, AttemptReplay, replay_job
from drainfsm.views.tally import Tally, Totals


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    at_unix_ms: int
    drill: CheckpointDrilled


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    attempts: tuple[AttemptReport, ...]
    totals: Totals
    drills: tuple[DrillReport, ...] | None = None
    """Restores that were rehearsed, from the checkpoint store; None: no store was named."""

    last_good_drill_unix_ms: int | None = None
    """When the newest of them that succeeded was; None: none did, or it was not asked."""

    rehearsals: tuple[DrainRehearsed, ...] | None = None
    """Drains that were rehearsed, from the same place."""

    last_good_rehearsal_unix_ms: int | None = None
    """When the newest of them that passed was; None: none did, or it was not asked."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs by name, each with its attempts in numbers."""

    jobs: tuple[JobReport, ...]
    totals: Totals
    """Over all jobs."""


def report_jobs(logs: Sequence[AttemptLog], *, epoch: int | None = None) -> Report:
    """What notices, drains, losses and restarts did to the jobs of these logs.

    ``epoch``: only that attempt of each job, with what its neighbours say about it.
    """
    by_job: dict[str, list[AttemptReplay]] = {}
    for replay in replay_job(logs):
        by_job.setdefault(replay.final.job_id, []).append(replay)
    everything, jobs = Tally(), []
    for job_id, replays in by_job.items():
        own, attempts = Tally(), []
        for attempt, seen in attempts_of(replays):
            if epoch in (None, attempt.epoch):
                attempts.append(attempt)
                for tally in (own, everything):
                    tally.see(attempt, seen)
        if epoch is None:
            own.miss(attempts)
            everything.miss(attempts)
        jobs.append(JobReport(job_id=job_id, attempts=tuple(attempts), totals=own.totals()))
    return Report(jobs=tuple(jobs), totals=everything.totals())


def with_drills(
    made: Report,
    drills: Sequence[tuple[int, CheckpointDrilled]],
    rehearsals: tuple[DrainRehearsed, ...] = (),
    *,
    job_id: str,
) -> Report:
    """The same with the drills recorded in the checkpoint store of that job."""
    found = tuple(DrillReport(at_unix_ms=at, drill=drill) for at, drill in drills)
    good = [one.at_unix_ms for one in found if one.drill.outcome == DrillOutcome.VERIFIED]
    last_good = max(good, default=None)
    passed = max((one.at_unix_ms for one in rehearsals if one.passed), default=None)
    jobs = tuple(
        msgspec.structs.replace(
            job,
            drills=found,
            last_good_drill_unix_ms=last_good,
            rehearsals=rehearsals,
            last_good_rehearsal_unix_ms=passed,
        )
        if job.job_id == job_id
        else job
        for job in made.jobs
    )
    return msgspec.structs.replace(made, jobs=jobs)


def attempts_of(replays: Sequence[AttemptReplay]) -> list[tuple[AttemptReport, Seen]]:
    """Of one job, with what only the neighbours know: who came next and when, the commit before."""
    seen = [see(replay) for replay in replays]
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
    return list(zip(reports, seen, strict=True))


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
