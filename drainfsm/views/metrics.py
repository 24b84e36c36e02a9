"""What the log says, for Prometheus: gauges of how jobs stand, counters, histograms of phases.

Read at every scrape from what was folded; whoever runs a job knows nothing of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from drainfsm.core.deadline import budget_of
from drainfsm.core.state import Phase
from drainfsm.version import __version__
from drainfsm.views.attempts import Ending
from drainfsm.views.measures import Distribution
from drainfsm.views.projections import JobProjection, Projection
from drainfsm.views.status import Outlook, outlook

JOB = "job_id"
"""Not ``job``: that is the label by which Prometheus names what it scrapes."""

ENDINGS = tuple(ending.value for ending in Ending if ending is not Ending.OPEN)
KINDS = ("drain", "periodic")


class LogCollector(Collector):
    """Metrics of every job in a projection."""

    def __init__(
        self,
        projection: Callable[[], Projection],
        *,
        clock: Callable[[], int],
        together: bool = False,
    ) -> None:
        """``projection``: brings it up to date and gives it. ``clock``: Unix milliseconds.
        ``together``: histograms are over all jobs, for there may be thousands."""
        self._together = together
        self._projection = projection
        self._clock = clock
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        return ()  # or registering would collect

    def collect(self) -> Iterable[Metric]:
        with self._lock:  # scrapes come on threads of their own
            return self._collect()

    def _collect(self) -> list[Metric]:
        projection, now_unix_ms = self._projection(), self._clock()
        jobs = sorted(projection.jobs.values(), key=lambda job: job.job_id)
        build = GaugeMetricFamily("drainfsm_build_info", "Version.", labels=["version"])
        build.add_metric([__version__], 1)
        unreadable = CounterMetricFamily(
            "drainfsm_records_unreadable", "Messages of the log that are no records."
        )
        unreadable.add_metric([], projection.unreadable_count)
        return [
            build,
            unreadable,
            *_attempt_gauges(jobs, now_unix_ms),
            *_drain_gauges(jobs, now_unix_ms),
            *_counters(jobs),
            *_histograms(jobs, together=self._together),
        ]


class Collected(CollectorRegistry):
    """What a collector gave at one time."""

    def __init__(self, found: Iterable[Metric]) -> None:
        super().__init__()
        self._found = tuple(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def registry(
    projection: Callable[[], Projection], *, clock: Callable[[], int]
) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(LogCollector(projection, clock=clock))
    return made


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"drainfsm_{name}", text, labels=[JOB, *labels])


def _attempt_gauges(jobs: Iterable[JobProjection], now_unix_ms: int) -> Iterator[Metric]:
    epoch = _gauge("attempt_epoch", "Number of the job's newest attempt.")
    running = _gauge("attempt_running", "1 while the newest attempt has not ended.")
    nodes = _gauge("attempt_nodes", "Nodes of the newest attempt.")
    ranks = _gauge("attempt_ranks", "Ranks of the newest attempt; 0: not all are there.")
    started = _gauge("attempt_start_timestamp_seconds", "Start of the newest attempt.")
    heard = _gauge("last_record_timestamp_seconds", "Newest record of the newest attempt.")
    healthy = _gauge("attempt_healthy", "1 once every rank has completed a step.")
    commit_age = _gauge("commit_age_seconds", "Since the newest commit of the job in this log.")
    commit_step = _gauge("commit_step", "Step of the newest commit that is known.")
    save_bytes = _gauge("save_bytes", "Size of one checkpoint.")
    blind = _gauge("source_unknown_nodes", "Nodes on which a notice source cannot tell.", "source")
    for job in jobs:
        name, newest = [job.job_id], job.newest
        attempt = newest.state.attempt
        over = attempt.exit_code is not None or attempt.fenced_by is not None
        epoch.add_metric(name, attempt.epoch)
        running.add_metric(name, not over and newest.state.phase is not Phase.LOST)
        nodes.add_metric(name, attempt.node_count)
        ranks.add_metric(name, attempt.world_size)
        healthy.add_metric(name, attempt.healthy_step is not None)
        save_bytes.add_metric(name, attempt.load.save_bytes)
        if newest.first_unix_ms is not None:
            started.add_metric(name, newest.first_unix_ms / 1_000)
        if newest.last_unix_ms is not None:
            heard.add_metric(name, newest.last_unix_ms / 1_000)
        if job.measures.committed_unix_ms is not None:
            commit_age.add_metric(name, (now_unix_ms - job.measures.committed_unix_ms) / 1_000)
        if attempt.committed is not None:
            commit_step.add_metric(name, attempt.committed.step)
        for source, count in sorted(job.measures.blind(attempt.epoch).items()):
            blind.add_metric([*name, source], count)
    yield from (epoch, running, nodes, ranks, started, heard, healthy)
    yield from (commit_age, commit_step, save_bytes, blind)


def _drain_gauges(jobs: Iterable[JobProjection], now_unix_ms: int) -> Iterator[Metric]:
    phase = _gauge("drain_phase", "1 for the state of the newest attempt's drain.", "phase")
    remaining = _gauge("drain_remaining_seconds", "To the deadline of the open drain.")
    needed = _gauge("drain_needed_seconds", "What the save and leaving would still take.")
    fits = _gauge("drain_save_fits", "1 while the open drain's save fits, or is committed.")
    committed = _gauge("drain_committed", "1 once the open drain has committed its save.")
    for job in jobs:
        name, state = [job.job_id], job.newest.state
        phase.add_metric([*name, state.phase.value], 1)
        if state.drain is None or not state.phase.active:
            continue
        remaining.add_metric(name, (state.drain.deadline_unix_ms - now_unix_ms) / 1_000)
        committed.add_metric(name, state.phase is Phase.PUBLISHED)
        budget = budget_of(state, now_unix_ms=now_unix_ms)
        needed.add_metric(name, budget.needed_ms / 1_000)
        fits.add_metric(name, outlook(state, budget) in (Outlook.FITS, Outlook.COMMITTED))
    yield from (phase, remaining, needed, fits, committed)


def _counters(jobs: Iterable[JobProjection]) -> Iterator[Metric]:
    def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"drainfsm_{name}", text, labels=[JOB, *labels])

    plain = {
        "started_count": counter("attempts_started", "Attempts that have claimed the job."),
        "fenced_count": counter("attempts_fenced", "Attempts that a newer one has superseded."),
        "deadline_missed_count": counter(
            "deadlines_missed", "Drains after whose deadline processes were left."
        ),
        "restore_count": counter("restores", "Restores that worked."),
        "restore_refused_count": counter(
            "restores_refused", "Restores that ranks refused, and ended."
        ),
        "restore_fallback_count": counter(
            "restores_fallback", "Restores of something older than what was recorded."
        ),
    }
    ended = counter("attempts_ended", "Attempts by how they ended.", "ending")
    notices = counter("notices", "Notices that were accepted.", "notice_class", "cause")
    drains = counter("drains", "Drains that are over.", "cause", "outcome")
    commits = counter("commits", "Generations that were committed.", "kind")
    failures = counter("save_failures", "Failed saves.", "kind")
    unknown = counter("source_unknown", "How often a source could not tell.", "source")
    for job in jobs:
        name, measures = job.job_id, job.measures
        for attribute, family in plain.items():
            family.add_metric([name], getattr(measures, attribute))
        _each(ended, name, measures.ended, ENDINGS)
        _each(commits, name, measures.commits, KINDS)
        _each(failures, name, measures.save_failures, KINDS)
        _each(unknown, name, measures.source_unknown)
        for labels, count in sorted(measures.notices.items()):
            notices.add_metric([name, *labels], count)
        for labels, count in sorted(measures.drains.items()):
            drains.add_metric([name, *labels], count)
    yield from plain.values()
    yield from (ended, notices, drains, commits, failures, unknown)


def _each(
    family: CounterMetricFamily, job_id: str, counts: Counter[str], known: Iterable[str] = ()
) -> None:
    """``known``: said from the beginning, or nobody sees their first rise."""
    for label in sorted({*known, *counts}):
        family.add_metric([job_id, label], counts[label])


Distributions = dict[tuple[str, str], Distribution]
"""By job and phase."""


def _histograms(jobs: Iterable[JobProjection], *, together: bool) -> Iterator[Metric]:
    """``together``: over all jobs, under no job's name."""
    drain: Distributions = {}
    periodic: Distributions = {}
    restore: Distributions = {}
    healthy: Distributions = {}
    for job in jobs:
        name, measures = "" if together else job.job_id, job.measures
        for found, phases in (
            (drain, measures.drain_phases),
            (periodic, measures.periodic_phases),
            (restore, {"": measures.restore}),
            (healthy, {"": measures.to_healthy}),
        ):
            for phase, distribution in phases.items():
                found.setdefault((name, phase), Distribution()).add_all(distribution)
    yield _histogram("drain_phase_duration_seconds", "Phases of drains.", drain, "phase")
    yield _histogram(
        "periodic_save_duration_seconds", "Phases of periodic saves.", periodic, "phase"
    )
    yield _histogram("restore_duration_seconds", "Restores, of the slowest node.", restore)
    yield _histogram("attempt_healthy_duration_seconds", "From start to a healthy step.", healthy)


def _histogram(name: str, text: str, found: Distributions, *labels: str) -> Metric:
    family = HistogramMetricFamily(f"drainfsm_{name}", text, labels=[JOB, *labels])
    for (job_id, phase), distribution in sorted(found.items()):
        if any(distribution.counts):
            values = [job_id, phase] if labels else [job_id]
            buckets = distribution.buckets()
            family.add_metric(values, buckets=buckets, sum_value=distribution.sum_s)
    return family
