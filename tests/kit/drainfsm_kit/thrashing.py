"""A cluster on which jobs evict one another, a minute at a time, with and without the policy.

``python -m drainfsm_kit.thrashing [SEEDS]`` prints what ``run`` measures. Without it, a job's
priority is that of its tier and rises while it waits, whoever has a higher one takes the place of
whoever has a lower one, and who was evicted is in the queue again at once: as sites have it.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from drainfsm.policy.cascade import cascades
from drainfsm.policy.events import Ended, Eviction, PastAttempt, Row, Running, Waiting
from drainfsm.policy.preemption import decide_preemption
from drainfsm.policy.restarts import chance_of, decide_restart
from drainfsm.policy.rules import CascadeRules, PreemptionRules, RestartRules

MINUTE_MS = 60_000
CAPACITY = 32
START_MIN = 7
DRAIN_MIN = 2
AGING_MIN = 15
"""Without the policy: after so long in the queue a job counts as of the next higher tier."""

ARRIVALS_MIN = 600
MINUTES_MAX = 60 * 24 * 14
PREEMPTION = PreemptionRules()
RESTART = RestartRules(pause_s=60, pause_s_max=1_800, healthy_s=1_200, preemptions_max=1_000)
TIERS = [tier.name for tier in PREEMPTION.tiers]


@dataclass
class ClusterJob:
    name: str
    tier: str
    capacity: int
    work_min: int
    arrives_min: int
    state: str = "waiting"
    since_min: int = 0
    """When it came to this state."""

    not_before_min: int = 0
    begun_min: int = 0
    trained_min: int = 0
    wait_max_min: int = 0
    row: Row = field(default_factory=Row)
    evicted_min: list[int] = field(default_factory=list)


class Measured(NamedTuple):
    seed: int
    policy: bool
    productive: float
    """Share of the allocated time in which something was trained."""

    evictions: int
    cascades: int
    settled_min: int
    """When the last job was evicted."""

    done_min: int
    wait_max_min: int
    """Longest time that any job was in the queue without a break."""

    evictions_max: int
    """Of one job."""

    finished: bool


def workload(seed: int) -> list[ClusterJob]:
    chance = random.Random(seed)
    kinds = {
        "interactive": (2, 25),
        "production": (8, 180),
        "training": (8, 300),
        "batch": (6, 120),
    }
    weights = (12, 3, 6, 9)
    return [
        ClusterJob(
            name=f"{tier}-{number}",
            tier=tier,
            capacity=kinds[tier][0],
            work_min=round(kinds[tier][1] * chance.uniform(0.5, 1.5)),
            arrives_min=round(chance.uniform(0, ARRIVALS_MIN)),
        )
        for number, tier in enumerate(chance.choices(list(kinds), weights, k=45))
    ]


class ThrashingCluster:
    """The queue, what runs, and who evicted whom."""

    def __init__(self, jobs: list[ClusterJob], *, policy: bool) -> None:
        self.jobs = jobs
        self.evictions: list[Eviction] = []
        self.allocated_min = 0
        self._policy = policy
        self._now = 0

    def run(self) -> int:
        """Until every job is done; the minute in which that was."""
        while self._now < MINUTES_MAX and any(job.state != "done" for job in self.jobs):
            for job in self.jobs:
                self._advance(job)
            for job in sorted(self._queue(), key=self._order):
                self._place(job)
            self._now += 1
        return self._now

    def _queue(self) -> list[ClusterJob]:
        ready = [job for job in self.jobs if job.state == "waiting"]
        return [job for job in ready if self._now >= max(job.arrives_min, job.not_before_min)]

    def _holding(self) -> Iterator[ClusterJob]:
        return (job for job in self.jobs if job.state in ("starting", "training", "draining"))

    def _free(self) -> int:
        return CAPACITY - sum(job.capacity for job in self._holding())

    def _waited(self, job: ClusterJob) -> int:
        return self._now - max(job.arrives_min, job.since_min)

    def _priority(self, job: ClusterJob) -> float:
        """Without the policy; the lower, the more important."""
        aged = self._waited(job) / AGING_MIN if job.state == "waiting" else 0
        return TIERS.index(job.tier) - aged

    def _order(self, job: ClusterJob) -> tuple[float, int]:
        rank = TIERS.index(job.tier) if self._policy else self._priority(job)
        return rank, max(job.arrives_min, job.since_min)

    def _advance(self, job: ClusterJob) -> None:
        age = self._now - job.since_min
        if job.state in ("starting", "training", "draining"):
            self.allocated_min += job.capacity
        if job.state == "waiting" and self._now >= job.arrives_min:
            job.wait_max_min = max(job.wait_max_min, self._waited(job))
        elif job.state == "starting" and age >= START_MIN:
            self._enter(job, "training")
        elif job.state == "training":
            job.trained_min += 1
            if job.trained_min >= job.work_min:
                self._enter(job, "done")
        elif job.state == "draining" and age >= DRAIN_MIN:
            self._enter(job, "waiting")
            self._comes_back(job)

    def _enter(self, job: ClusterJob, state: str) -> None:
        job.state, job.since_min = state, self._now

    def _comes_back(self, job: ClusterJob) -> None:
        if not self._policy:
            return
        epoch = len(job.evicted_min)
        decision = decide_restart(
            job.row,
            PastAttempt(
                epoch=epoch,
                ended=Ended.PREEMPTED,
                lived_ms=(self._now - job.begun_min) * MINUTE_MS,
                progressed=True,
            ),
            RESTART,
            job_id=job.name,
            chance=chance_of(job.name, epoch),
            now_unix_ms=self._now * MINUTE_MS,
        )
        job.row = decision.row
        job.not_before_min = self._now + -(-decision.pause_ms // MINUTE_MS)

    def _place(self, job: ClusterJob) -> None:
        if self._free() < job.capacity:
            draining = sum(one.capacity for one in self._holding() if one.state == "draining")
            if self._free() + draining < job.capacity:  # else room is on its way
                self._evict(job, self._victims(job))
            return
        self._enter(job, "starting")
        job.begun_min = self._now

    def _victims(self, job: ClusterJob) -> Iterable[ClusterJob]:
        running = [one for one in self._holding() if one.state != "draining"]
        if self._policy:
            decision = decide_preemption(
                Waiting(job_id=job.name, tier=job.tier, capacity=job.capacity),
                [self._running(one) for one in running],
                PREEMPTION,
                free_capacity=self._free(),
                now_unix_ms=self._now * MINUTE_MS,
            )
            return [one for one in running if one.name in decision.victims]
        lower = [one for one in running if self._priority(one) > self._priority(job)]
        chosen: list[ClusterJob] = []
        for one in sorted(lower, key=self._priority, reverse=True):
            if self._free() + sum(x.capacity for x in chosen) < job.capacity:
                chosen.append(one)
        enough = self._free() + sum(x.capacity for x in chosen) >= job.capacity
        return chosen if enough else []

    def _running(self, job: ClusterJob) -> Running:
        return Running(
            job_id=job.name,
            tier=job.tier,
            started_unix_ms=job.begun_min * MINUTE_MS,
            capacity=job.capacity,
            at_risk_ms=(self._now - job.since_min) * MINUTE_MS,
            evicted_unix_ms=tuple(minute * MINUTE_MS for minute in job.evicted_min),
        )

    def _evict(self, job: ClusterJob, victims: Iterable[ClusterJob]) -> None:
        for victim in victims:
            at = self._now * MINUTE_MS
            self.evictions.append(Eviction(at_unix_ms=at, by=job.name, victim=victim.name))
            victim.evicted_min.append(self._now)
            self._enter(victim, "draining")


def run(seed: int, *, policy: bool) -> Measured:
    jobs = workload(seed)
    cluster = ThrashingCluster(jobs, policy=policy)
    done_min = cluster.run()
    trained = sum(job.trained_min * job.capacity for job in jobs)
    return Measured(
        seed=seed,
        policy=policy,
        productive=trained / cluster.allocated_min,
        evictions=len(cluster.evictions),
        cascades=len(cascades(cluster.evictions, CascadeRules())),
        settled_min=max((one.at_unix_ms // MINUTE_MS for one in cluster.evictions), default=0),
        done_min=done_min,
        wait_max_min=max(job.wait_max_min for job in jobs),
        evictions_max=max(len(job.evicted_min) for job in jobs),
        finished=all(job.state == "done" for job in jobs),
    )


def summary(seeds: int) -> Iterator[str]:
    for policy in (False, True):
        rows = [run(seed, policy=policy) for seed in range(seeds)]
        yield f"{'with' if policy else 'without'} the policy, median of {seeds} seeds (worst):"
        for name, worst in (
            ("productive", min), ("evictions", max), ("cascades", max), ("settled_min", max),
            ("done_min", max), ("wait_max_min", max), ("evictions_max", max),
        ):  # fmt: skip
            values = [getattr(row, name) for row in rows]
            yield f"  {name:14} {statistics.median(values):8.3g} ({worst(values):.3g})"
        yield f"  all finished   {all(row.finished for row in rows)}"


if __name__ == "__main__":
    for line in summary(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        sys.stdout.write(line + "\n")
