"""The five measures of ``drainfsm report`` beside what really became of the same attempts.

The log knows less than the world: an attempt that lost its coordinator wrote down neither the
notice nor the step that came last, an end is known when it was recorded, and every instant by the
clock of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drainfsm.views import AttemptReport, by_attempt, report_jobs
from drainfsm.views.attempts import Ending
from drainfsm.views.tally import Values
from drainfsm_kit.simulator.simulation import Result, simulate_seed
from drainfsm_kit.simulator.truth import Truth

RECORDING_MS = 1_000
"""Until what happened is on record; to claim the job, for the beginning of an attempt."""


STOPPED = ("stopped", "paused")
"""Faults by which the end of an attempt is recorded long after it."""


class Told:
    """Over many simulations. Pairs are (what ``report`` says, what was)."""

    def __init__(self) -> None:
        self.attempt_count = 0
        self.missed: list[tuple[bool, bool]] = []
        self.healthy: list[tuple[bool, bool]] = []
        """A first step on every rank, of restarts."""

        self.restore_ms: list[tuple[int, int]] = []
        self.requeue_ms: list[tuple[int, int]] = []
        self.checkpoint_age_ms: list[tuple[int, int]] = []
        self.requeue_off: list[str] = []
        """Where the two differ by more than clocks and recording explain."""

        self.age_off: list[str] = []

    def add(self, result: Result) -> None:
        records = [record for _, records in result.history for record in records]
        off_ms = 2 * result.plan.world.allowances.clock_skew_ms + RECORDING_MS
        for job in report_jobs(by_attempt(records)).jobs:
            for attempt in job.attempts:
                truth, following = (result.truth.get(attempt.epoch + n) for n in (0, 1))
                if truth is not None:
                    self._add(attempt, truth)
                    where = f"seed {result.plan.seed}, epoch {attempt.epoch}"
                    stopped = any(result.tally.faults[name] for name in STOPPED)
                    self._add_age(attempt, truth, where, off_ms, stopped=stopped)
                    if following is not None:
                        self._add_requeue(attempt, truth, following, where, off_ms)

    def _add(self, attempt: AttemptReport, truth: Truth) -> None:
        self.attempt_count += 1
        if attempt.ending in (Ending.LOST, Ending.DRAINED):
            self.missed.append((not attempt.noticed, not truth.noticed))
        healthy = attempt.healthy_after_ms is not None
        if attempt.epoch > 1 and (healthy or attempt.ending is not Ending.OPEN):
            self.healthy.append((healthy, truth.stepped))
        if attempt.restore_ms is not None and truth.restore_ms is not None:
            self.restore_ms.append((attempt.restore_ms, truth.restore_ms))

    def _add_requeue(
        self, attempt: AttemptReport, truth: Truth, following: Truth, where: str, off_ms: int
    ) -> None:
        told_ms = attempt.requeue_delay_ms
        if told_ms is None or truth.ended_ms is None:
            return
        true_ms = max(0, following.began_ms - truth.ended_ms)  # 0: it took over
        self.requeue_ms.append((told_ms, true_ms))
        if abs(told_ms - true_ms) > off_ms:
            self.requeue_off.append(f"{where}: {told_ms} ms told, {true_ms} ms true")

    def _add_age(
        self, attempt: AttemptReport, truth: Truth, where: str, off_ms: int, *, stopped: bool
    ) -> None:
        """``stopped``: who would have recorded the end may have slept."""
        low_ms, high_ms = attempt.checkpoint_age_ms, attempt.checkpoint_age_ms_max
        if low_ms is None or truth.ended_ms is None or truth.committed_ms is None:
            return
        true_ms = truth.ended_ms - truth.committed_ms
        self.checkpoint_age_ms.append((low_ms, true_ms))
        late = low_ms > true_ms + off_ms and not stopped
        if late or (high_ms is not None and true_ms > high_ms + off_ms):
            self.age_off.append(f"{where}: {low_ms} to {high_ms} ms told, {true_ms} ms true")

    @property
    def notices_made_up(self) -> int:
        """Losses that are told to have been announced, and were not."""
        return sum(not told and true for told, true in self.missed)

    @property
    def steps_made_up(self) -> int:
        return sum(told and not true for told, true in self.healthy)

    @property
    def restores_off(self) -> int:
        return sum(told != true for told, true in self.restore_ms)

    def lines(self) -> Iterator[str]:
        """A table; durations as p50 / p95 / max. Below it, what differs."""
        yield f"{self.attempt_count} attempts"
        yield f"{'measure':28}{'of':>6}{'report':>24}{'truth':>24}"
        for name, found in (
            ("lost without notice", self.missed),
            ("restarts with a first step", self.healthy),
        ):
            told, true = (sum(pair[side] for pair in found) for side in (0, 1))
            yield f"{name:28}{len(found):>6}{told:>24}{true:>24}"
        for name, pairs in (
            ("checkpoint age at failure", self.checkpoint_age_ms),
            ("requeue delay", self.requeue_ms),
            ("restore", self.restore_ms),
        ):
            texts = [f"{_text(pair[side] for pair in pairs):>24}" for side in (0, 1)]
            yield f"{name:28}{len(pairs):>6}{''.join(texts)}"
        yield (
            f"made up: {self.notices_made_up} notices, {self.steps_made_up} first steps; restores "
            f"that differ: {self.restores_off}"
        )
        for name, off in (("requeue delay", self.requeue_off), ("age", self.age_off)):
            yield from (f"  {name}, {one}" for one in off)


def told_by(seeds: Iterable[int]) -> Told:
    found = Told()
    for seed in seeds:
        found.add(simulate_seed(seed))
    return found


def _text(values_ms: Iterable[int]) -> str:
    values = Values()
    for value_ms in values_ms:
        values.add(value_ms)
    found = values.durations()
    if not found.count:
        return "none"
    return f"{found.p50_ms} / {found.p95_ms} / {found.max_ms} ms"
