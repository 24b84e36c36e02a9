"""Attempts added up: rates, percentiles, losses. One attempt at a time, and none is kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import msgspec

from drainfsm.views.attempts import AttemptReport, Ending, Seen
from drainfsm.views.sources import SourceHealth, sources_of


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    of: int
    share: float | None
    """None: there was nothing to count."""


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed. Percentiles are observed values (nearest rank), not estimates."""

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
    """Attempts added up."""

    attempt_count: int
    unlogged_count: int
    """Attempts that must have existed, by their numbers, and left no record in this log."""

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
    """Restarts in which every rank completed a step, and some save did not fail. One that is still
    starting does not count."""

    checkpoint_age: Durations
    """Of lost and failed attempts: last commit to last sign of life."""

    requeue_delay: Durations
    restore: Durations
    restore_refused_count: int
    """Attempts whose ranks ended instead of restoring."""

    restore_fallback_count: int
    """Attempts that restored something older than what was recorded, which was damaged."""

    restart_to_healthy: Durations
    save_count: int
    """Generations that were committed."""

    failed_save_count: int
    saves_nothing_count: int
    """Attempts all of whose saves failed."""

    save_durable: Durations
    save_commit: Durations
    work_lost_ms: int
    steps_lost: int
    """Of the attempts whose log says how far the ranks were."""

    steps_lost_unknown_count: int
    """Attempts that ended and whose log does not say it."""

    sources: tuple[SourceReport, ...]


class Values:
    """Observed durations: eight bytes each."""

    def __init__(self) -> None:
        self._values = array("q")

    def add(self, value_ms: int | None) -> None:
        """None: it was not observed, and does not count."""
        if value_ms is not None:
            self._values.append(max(-(2**63), min(value_ms, 2**63 - 1)))

    def sorted(self) -> list[int]:
        return sorted(self._values)

    def durations(self) -> Durations:
        known = self.sorted()
        if not known:
            return Durations(count=0)

        def at(percent: int) -> int:
            return known[-(-percent * len(known) // 100) - 1]

        return Durations(
            count=len(known), p50_ms=at(50), p95_ms=at(95), p99_ms=at(99), max_ms=known[-1]
        )


class Tally:
    """Of attempts, of one job or many. Attempts of a job are added in the order of the epochs."""

    def __init__(self) -> None:
        self.attempt_count = 0
        self._unlogged_count = 0
        self._endings: Counter[str] = Counter()
        self._drains: Counter[str] = Counter()
        self._deadline_missed_count = 0
        self._missed = [0, 0]
        self._healthy = [0, 0]
        self._checkpoint_age, self._requeue_delay = Values(), Values()
        self._restore, self._to_healthy = Values(), Values()
        self._durable, self._commit = Values(), Values()
        self._refused_count = self._fallback_count = 0
        self._save_count = self._failed_save_count = self._saves_nothing_count = 0
        self._work_lost_ms = self._steps_lost = self._steps_unknown_count = 0
        self._sources: dict[tuple[str, int], SourceReport] = {}

    def miss(self, attempts: Sequence[AttemptReport]) -> None:
        """``attempts``: all of one job. Count those that must have existed, by the numbers of
        these, and left no record."""
        self._unlogged_count += max((one.epoch for one in attempts), default=0) - len(attempts)

    def see(self, attempt: AttemptReport, seen: Seen) -> None:
        """``seen``: what it was read off."""
        self.attempt_count += 1
        self._endings[attempt.ending.value] += 1
        self._drains.update(drain.outcome for drain in attempt.drains)
        self._deadline_missed_count += sum((one.remaining_ms or 0) < 0 for one in attempt.drains)
        if attempt.ending in (Ending.LOST, Ending.DRAINED):
            _count(self._missed, good=not attempt.noticed)
        self._add_restart(attempt)
        self._checkpoint_age.add(attempt.checkpoint_age_ms)
        self._requeue_delay.add(attempt.requeue_delay_ms)
        self._work_lost_ms += attempt.work_lost_ms
        if attempt.ending is not Ending.OPEN:
            self._steps_lost += attempt.steps_lost or 0
            self._steps_unknown_count += attempt.steps_lost is None
        self._save_count += attempt.commit_count
        self._failed_save_count += attempt.failed_save_count
        self._saves_nothing_count += attempt.saves_nothing
        for sample in seen.samples:
            self._durable.add(sample.durable_ms)
            self._commit.add(sample.commit_ms)
        for place, health in sources_of(seen.replay.counted).health.items():
            self._sources[place] = _added(self._sources.get(place), *place, health)

    def _add_restart(self, attempt: AttemptReport) -> None:
        self._restore.add(attempt.restore_ms)
        self._refused_count += bool(attempt.restore_refused)
        self._fallback_count += bool(attempt.restored_in_place_of)
        healthy = attempt.healthy_after_ms is not None
        if attempt.epoch > 1 and (healthy or attempt.ending is not Ending.OPEN):
            _count(self._healthy, good=attempt.got_healthy)
            self._to_healthy.add(attempt.healthy_after_ms)

    def totals(self) -> Totals:
        return Totals(
            attempt_count=self.attempt_count,
            unlogged_count=self._unlogged_count,
            endings=dict(sorted(self._endings.items())),
            drains=dict(sorted(self._drains.items())),
            deadline_missed_count=self._deadline_missed_count,
            missed_notice=_rate(self._missed),
            restart_healthy=_rate(self._healthy),
            checkpoint_age=self._checkpoint_age.durations(),
            requeue_delay=self._requeue_delay.durations(),
            restore=self._restore.durations(),
            restore_refused_count=self._refused_count,
            restore_fallback_count=self._fallback_count,
            restart_to_healthy=self._to_healthy.durations(),
            save_count=self._save_count,
            failed_save_count=self._failed_save_count,
            saves_nothing_count=self._saves_nothing_count,
            save_durable=self._durable.durations(),
            save_commit=self._commit.durations(),
            work_lost_ms=self._work_lost_ms,
            steps_lost=self._steps_lost,
            steps_lost_unknown_count=self._steps_unknown_count,
            sources=tuple(self._sources[place] for place in sorted(self._sources)),
        )


def _count(counts: list[int], *, good: bool) -> None:
    counts[0] += good
    counts[1] += 1


def _rate(counts: Sequence[int]) -> Rate:
    count, of = counts
    return Rate(count=count, of=of, share=count / of if of else None)


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
