"""The arithmetic of the rule: monotone in every argument, and its bound covers what it claims."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainfsm.core.budget import (
    DURABLE_QUANTILE,
    Allowances,
    Budget,
    Load,
    Sample,
    Stage,
    comparable,
    evaluate,
    save_budget_ms,
)
from drainfsm.core.fit import FitOver, SizedSave, fitted
from drainfsm.core.quantiles import samples_needed, upper_bound
from drainfsm.core.rules import recompute
from drainfsm.testing import strategies

NOW = 1_800_000_000_000
LOAD = Load(world_size=4, save_bytes=10**8, store=strategies.STORE)


def _evaluate(allowances: Allowances, samples: list[Sample], **changed: Any) -> Budget:
    arguments: dict[str, Any] = {
        "stage": Stage.NOTICE,
        "now_unix_ms": NOW,
        "deadline_unix_ms": NOW + 60_000,
        "clock_skew_ms": 500,
        "load": LOAD,
    }
    arguments.update(changed)
    return evaluate(allowances=allowances, samples=samples, **arguments)


@given(
    allowances=strategies.allowances,
    samples=st.lists(strategies.samples, max_size=70),
    stage=st.sampled_from(Stage),
)
def test_every_evaluation_adds_up(
    allowances: Allowances, samples: list[Sample], stage: Stage
) -> None:
    assert recompute(_evaluate(allowances, samples, stage=stage)) == ""


@given(
    allowances=strategies.allowances,
    samples=st.lists(strategies.samples, max_size=5),
    more_ms=st.integers(0, 10**6),
)
def test_less_time_never_makes_a_save_fit(
    allowances: Allowances, samples: list[Sample], more_ms: int
) -> None:
    base = _evaluate(allowances, samples)
    for tighter in (
        {"now_unix_ms": NOW + more_ms},
        {"deadline_unix_ms": NOW + 60_000 - more_ms},
        {"clock_skew_ms": 500 + more_ms},
    ):
        changed = _evaluate(allowances, samples, **tighter)
        assert changed.remaining_ms <= base.remaining_ms
        assert base.fits or not changed.fits


@pytest.mark.parametrize("term", ["quiesce_ms", "commit_ms", "exit_margin_ms", "barrier_ms"])
@given(
    allowances=strategies.allowances,
    samples=st.lists(strategies.samples, max_size=5),
    more_ms=st.integers(0, 10**6),
)
def test_a_larger_reserve_never_makes_a_save_fit(
    term: str, allowances: Allowances, samples: list[Sample], more_ms: int
) -> None:
    larger = msgspec.structs.replace(allowances, **{term: getattr(allowances, term) + more_ms})
    base, changed = _evaluate(allowances, samples), _evaluate(larger, samples)
    assert changed.needed_ms >= base.needed_ms
    assert base.fits or not changed.fits


@given(
    allowances=strategies.allowances,
    samples=st.lists(strategies.samples, max_size=5),
    more_bytes=st.integers(0, 10**8),
)
def test_more_bytes_take_no_less_time_without_samples_of_that_size(
    allowances: Allowances, samples: list[Sample], more_bytes: int
) -> None:
    base = _evaluate(allowances, samples, load=LOAD, stage=Stage.QUIESCED)
    larger = msgspec.structs.replace(LOAD, save_bytes=LOAD.save_bytes + more_bytes)
    changed = _evaluate(allowances, samples, load=larger, stage=Stage.QUIESCED)
    assert base.durable is not None
    assert changed.durable is not None
    if base.durable.basis == changed.durable.basis and base.durable.basis in ("sizing", "fitted"):
        assert changed.durable.value_ms >= base.durable.value_ms


@given(
    allowances=strategies.allowances,
    samples=st.lists(strategies.samples, max_size=30),
    world_size=st.integers(1, 64),
    save_bytes=st.integers(1, 10**9),
)
def test_no_estimate_is_more_optimistic_than_a_save_that_was_no_larger(
    allowances: Allowances, samples: list[Sample], world_size: int, save_bytes: int
) -> None:
    """Whatever the number of ranks: no larger in bytes, or in bytes of a rank."""
    load = Load(world_size=world_size, save_bytes=save_bytes, store=strategies.STORE)
    durable = _evaluate(allowances, samples, load=load).durable
    assert durable is not None
    here = [s for s in samples if s.store == load.store and s.save_bytes > 0]
    no_larger = [
        s.durable_ms
        for s in here
        if s.save_bytes <= load.save_bytes
        or s.save_bytes / s.world_size <= load.save_bytes / load.world_size
    ]
    assert durable.value_ms >= max(no_larger, default=0)
    assert durable.value_ms >= max((s.durable_ms for s in comparable(samples, load)), default=0)
    assert (durable.basis == "sizing") is (not here)


@given(
    fixed_ms=st.integers(0, 10**4),
    ms_per_mib=st.integers(1, 100),
    sizes_mib=st.lists(st.integers(1, 10**4), min_size=1, max_size=9),
    asked_mib=st.integers(1, 10**5),
)
def test_saves_on_a_line_are_never_promised_to_be_faster_than_it(
    fixed_ms: int, ms_per_mib: int, sizes_mib: list[int], asked_mib: int
) -> None:
    """The line need not be known: from the smallest save on, the fit is at or above it."""
    saves = [SizedSave(4, size << 20, fixed_ms + ms_per_mib * size) for size in sizes_mib]
    fit = fitted(saves, SizedSave(4, asked_mib << 20))
    assert fit is not None
    true_ms = fixed_ms + ms_per_mib * asked_mib
    if asked_mib >= min(sizes_mib):
        assert fit.value_ms >= true_ms
    if min(sizes_mib) <= asked_mib <= max(sizes_mib):
        assert fit.value_ms == true_ms, "between two saves on the line, nothing is added"
    assert fit.value_ms <= true_ms * max(1, asked_mib / min(sizes_mib)) + 1


def lowest_line_above(points: list[tuple[int, int]], asked: int) -> int:
    """By its definition: no chord between two of the points, nothing in no time among them, lies
    above it; and beyond the largest it is in proportion."""
    largest, highest = max(size for size, _ in points), max(took for _, took in points)
    if asked > largest:
        return math.ceil(Fraction(highest * asked, largest))
    known = [(0, 0), *points, (largest, highest)]
    chords = [
        left_ms + Fraction(right_ms - left_ms, right - left) * (asked - left)
        for left, left_ms in known
        for right, right_ms in known
        if left <= asked <= right and left < right
    ]
    return math.ceil(max(chords))


@given(
    saves=st.lists(
        st.builds(SizedSave, st.integers(1, 4), st.integers(1, 50), st.integers(0, 50)),
        min_size=1,
        max_size=6,
    ),
    asked=st.builds(SizedSave, st.integers(1, 4), st.integers(1, 100)),
)
def test_the_fit_is_the_lowest_line_above_all_saves(
    saves: list[SizedSave], asked: SizedSave
) -> None:
    fit = fitted(saves, asked)
    assert fit is not None

    def per_rank(save: SizedSave) -> int:
        return math.ceil(save.save_bytes / save.world_size)

    by_bytes = lowest_line_above([(s.save_bytes, s.took_ms) for s in saves], asked.save_bytes)
    by_rank = lowest_line_above([(per_rank(s), s.took_ms) for s in saves], per_rank(asked))
    if all(save.world_size == asked.world_size for save in saves):
        by_rank = by_bytes
    assert fit.value_ms == max(by_bytes, by_rank)
    assert fit.over == (FitOver.BYTES_PER_RANK if by_rank > by_bytes else FitOver.BYTES)
    sizes = [per_rank(s) if by_rank > by_bytes else s.save_bytes for s in saves]
    assert (fit.sample_count, fit.bytes_min, fit.bytes_max) == (len(saves), min(sizes), max(sizes))


@given(allowances=strategies.allowances, samples=st.lists(strategies.samples, max_size=5))
def test_terms_that_are_spent_drop_out(allowances: Allowances, samples: list[Sample]) -> None:
    needed = [_evaluate(allowances, samples, stage=stage).needed_ms for stage in Stage]
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] == allowances.exit_margin_ms


@given(window_ms=st.integers(0, 10**6), allowances=strategies.allowances)
def test_the_save_budget_of_a_window_is_what_the_reserves_leave(
    window_ms: int, allowances: Allowances
) -> None:
    budget = save_budget_ms(window_ms=window_ms, allowances=allowances)
    assert 0 <= budget <= window_ms
    assert budget == 0 or save_budget_ms(window_ms=window_ms + 1, allowances=allowances) > budget


@settings(max_examples=60)
@given(
    values=st.lists(st.integers(0, 10**6), min_size=1, max_size=400),
    added=st.integers(0, 10**6),
    quantile=st.sampled_from((0.5, 0.9, 0.95, 0.99)),
)
def test_the_bound_is_a_sample_and_monotone(values: list[int], added: int, quantile: float) -> None:
    bound = upper_bound(values, quantile=quantile)
    assert (bound is None) is (len(values) < samples_needed(quantile))
    if bound is None:
        return
    assert bound in values
    assert sum(v <= bound for v in values) >= quantile * len(values)
    raised = upper_bound([v + added for v in values], quantile=quantile)
    assert raised == bound + added


@pytest.mark.parametrize("shape", ["uniform", "exponential", "heavy tail"])
@pytest.mark.parametrize(("quantile", "count"), [(0.95, 59), (0.95, 200), (0.99, 299)])
def test_the_bound_covers_the_true_quantile_as_often_as_it_claims(
    shape: str, quantile: float, count: int
) -> None:
    """Simulated on known distributions; 95 % claimed, 3 sigma of the simulation allowed."""
    chance = random.Random(f"{shape}/{quantile}/{count}")
    draw, true_quantile = {
        "uniform": (chance.random, quantile),
        "exponential": (lambda: chance.expovariate(1.0), -math.log1p(-quantile)),
        "heavy tail": (lambda: chance.paretovariate(1.0), 1.0 / (1.0 - quantile)),
    }[shape]
    rounds = 1_000
    covered = 0
    for _ in range(rounds):
        bound = upper_bound([int(draw() * 10**9) for _ in range(count)], quantile=quantile)
        assert bound is not None
        covered += bound >= true_quantile * 10**9
    assert covered / rounds >= 0.95 - 3 * (0.95 * 0.05 / rounds) ** 0.5
    assert covered / rounds < 1.0, "a bound that never fails claims too little"


def test_p99_of_durable_saves_needs_299_samples() -> None:
    assert samples_needed(DURABLE_QUANTILE) == 299
