"""Many jobs added up, a job at a time: what is kept of an attempt is a few numbers.

``report --all`` prints it as text, ``--json``, ``--csv`` (a row an attempt) and ``--html``.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter

import msgspec

from drainfsm.views.attempts import AttemptReport, Ending
from drainfsm.views.history import History
from drainfsm.views.replay import replay_job
from drainfsm.views.report import attempts_of
from drainfsm.views.tally import Durations, Tally, Totals, Values

COSTLIEST = 10
PHASES = ("cordon", "quiesce", "stage", "durable", "commit")
HEADROOM_BOUNDS_MS = (
    *(-60_000, -10_000, 0, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 1_800_000),
)
DAY_MS = 86_400_000


class AttemptFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempts count. None: all of them."""

    since_unix_ms: int | None = None
    cause: str | None = None
    """Of one of its drains."""

    source: str | None = None
    """Of one of its notices."""

    world_size: int | None = None

    def takes(self, attempt: AttemptReport) -> bool:
        drains = attempt.drains
        if self.since_unix_ms is not None and (attempt.started_unix_ms or 0) < self.since_unix_ms:
            return False
        if self.cause is not None and all(drain.cause != self.cause for drain in drains):
            return False
        if self.source is not None and all(self.source not in one.sources for one in drains):
            return False
        return self.world_size in (None, attempt.world_size)

    @property
    def empty(self) -> bool:
        return self == AttemptFilter()


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    world_size: int
    drain_count: int
    phases: dict[str, Durations]


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """By when the attempts ended; UTC."""

    from_unix_ms: int
    ended_count: int
    lost_count: int
    work_lost_ms: int


class JobLoss(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    attempt_count: int
    work_lost_ms: int


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Values from the bound before up to this one; None: no end."""

    below_ms: int | None
    count: int


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    job_count: int
    """With at least one attempt that counts."""

    totals: Totals
    headroom: Durations
    """From no process left to the deadline; its ``max`` is the most, not the worst."""

    headroom_bins: tuple[Bin, ...]
    causes: dict[str, dict[str, int]]
    """Drains by cause, then outcome."""

    phases: tuple[Phases, ...]
    days: tuple[Day, ...]
    costliest: tuple[JobLoss, ...]
    """Jobs by work lost, the most first."""

    damage: str
    """Not empty: what could not be read."""


class Fleet:
    """``row`` is told every attempt that counts, in passing."""

    def __init__(
        self, filter: AttemptFilter, *, row: Callable[[AttemptReport], None] | None = None
    ) -> None:
        self._filter = filter
        self._row = row
        self._job_count = 0
        self._tally = Tally()
        self._headroom = Values()
        self._bins = Counter[int]()
        self._causes: dict[str, Counter[str]] = {}
        self._phases: dict[tuple[int, str], Values] = {}
        self._drain_counts: Counter[int] = Counter()
        self._days: dict[int, list[int]] = {}
        self._costliest: list[tuple[int, str, int]] = []
        self._damage: list[str] = []

    def add(self, job: History) -> None:
        """All that there is of one job."""
        if job.damage:
            self._damage.append(job.damage)
        found = attempts_of(replay_job(job.logs))
        if not found:
            return
        taken = [(attempt, seen) for attempt, seen in found if self._filter.takes(attempt)]
        for attempt, seen in taken:
            self._tally.see(attempt, seen)
            self._add_attempt(attempt)
        if self._filter.empty:
            self._tally.miss([attempt for attempt, _ in found])
        if taken:
            self._job_count += 1
            lost_ms = sum(attempt.work_lost_ms for attempt, _ in taken)
            one = (lost_ms, taken[0][0].job_id, len(taken))
            keep = heapq.heappush if len(self._costliest) < COSTLIEST else heapq.heappushpop
            keep(self._costliest, one)

    def _add_attempt(self, attempt: AttemptReport) -> None:
        if self._row is not None:
            self._row(attempt)
        for drain in attempt.drains:
            self._causes.setdefault(drain.cause, Counter())[drain.outcome] += 1
            self._drain_counts[attempt.world_size] += 1
            for phase, took_ms in drain.phases_ms.items():
                self._phases.setdefault((attempt.world_size, phase), Values()).add(took_ms)
            if drain.remaining_ms is not None:
                self._headroom.add(drain.remaining_ms)
                self._bins[_bin(drain.remaining_ms)] += 1
        if attempt.ended_unix_ms is not None:
            day = self._days.setdefault(attempt.ended_unix_ms // DAY_MS, [0, 0, 0])
            day[0] += 1
            day[1] += attempt.ending is Ending.LOST
            day[2] += attempt.work_lost_ms

    def report(self) -> FleetReport:
        bounds = (*HEADROOM_BOUNDS_MS, None)
        losses = [
            JobLoss(job_id=job_id, attempt_count=count, work_lost_ms=lost_ms)
            for lost_ms, job_id, count in self._costliest
            if lost_ms
        ]
        losses.sort(key=attrgetter("job_id"))
        losses.sort(key=attrgetter("work_lost_ms"), reverse=True)
        return FleetReport(
            job_count=self._job_count,
            totals=self._tally.totals(),
            headroom=self._headroom.durations(),
            headroom_bins=tuple(
                Bin(below_ms=bound, count=self._bins[n]) for n, bound in enumerate(bounds)
            ),
            causes={
                cause: dict(sorted(outcomes.items()))
                for cause, outcomes in sorted(self._causes.items())
            },
            phases=tuple(self._by_world_size()),
            days=tuple(
                Day(
                    from_unix_ms=day * DAY_MS,
                    ended_count=ended,
                    lost_count=lost,
                    work_lost_ms=lost_ms,
                )
                for day, (ended, lost, lost_ms) in sorted(self._days.items())
            ),
            costliest=tuple(losses),
            damage="; ".join(self._damage),
        )

    def _by_world_size(self) -> Iterator[Phases]:
        for world_size in sorted(self._drain_counts):
            found = {
                phase: self._phases[world_size, phase].durations()
                for phase in PHASES
                if (world_size, phase) in self._phases
            }
            count = self._drain_counts[world_size]
            yield Phases(world_size=world_size, drain_count=count, phases=found)


def _bin(value_ms: int) -> int:
    return sum(value_ms >= bound for bound in HEADROOM_BOUNDS_MS)
