"""The two vectors of the design, and the edges of the rule by exact numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from drainfsm.core.budget import (
    Allowances,
    Budget,
    Load,
    Sample,
    Stage,
    evaluate,
    save_budget_ms,
)
from drainfsm.core.deadline import quiesce_by_unix_ms
from drainfsm.core.fit import Fit, FitOver, SizedSave, fitted

NOW = 1_800_000_000_000
STORE = "file:///store"
LOAD = Load(world_size=8, save_bytes=1_000_000, store=STORE)
RESERVES = Allowances(
    handler_ms=5_000,
    quiesce_ms=20_000,
    commit_ms=15_000,
    exit_margin_ms=15_000,
    clock_skew_ms=0,
    barrier_ms=0,
)


def _sample(durable_ms: int, **changed: int) -> Sample:
    fields = {"world_size": 8, "save_bytes": 1_000_000, **changed}
    return Sample(store=STORE, durable_ms=durable_ms, commit_ms=0, **fields)


def _evaluate(
    stage: Stage,
    *,
    remaining_ms: int = 60_000,
    clock_skew_ms: int = 0,
    allowances: Allowances = RESERVES,
    samples: Sequence[Sample] = (),
    load: Load = LOAD,
) -> Budget:
    return evaluate(
        stage=stage,
        now_unix_ms=NOW,
        deadline_unix_ms=NOW + remaining_ms,
        clock_skew_ms=clock_skew_ms,
        allowances=allowances,
        samples=samples,
        load=load,
    )


def test_a_window_of_150_s_leaves_95_s_for_the_durable_write() -> None:
    assert save_budget_ms(window_ms=150_000, allowances=RESERVES) == 95_000
    skewed = replace(RESERVES, clock_skew_ms=2_000)
    assert save_budget_ms(window_ms=150_000, allowances=skewed) == 93_000
    assert save_budget_ms(window_ms=57_000, allowances=skewed) == 0
    assert save_budget_ms(window_ms=1_000, allowances=skewed) == 0


def test_what_is_left_for_the_write_is_what_the_other_terms_leave() -> None:
    """Of 60 s, 15 are for the commit and 15 for the exit, and before the ranks hold 20 for that."""
    left = [_evaluate(stage).save_budget_ms for stage in (Stage.NOTICE, Stage.QUIESCED)]
    assert left == [10_000, 30_000]
    assert _evaluate(Stage.SAVING).save_budget_ms == 30_000
    assert _evaluate(Stage.DURABLE).save_budget_ms == 45_000


@pytest.mark.parametrize("late_ms", [0, 1, 86_400_000])
def test_nothing_remains_once_the_deadline_has_come(late_ms: int) -> None:
    budget = _evaluate(Stage.DURABLE, remaining_ms=5_000 - late_ms, clock_skew_ms=5_000)
    assert (budget.remaining_ms, budget.fits) == (0, False)


@pytest.mark.parametrize(
    ("remaining_ms", "fits"), [(145_000, False), (151_000, False), (151_001, True)]
)
def test_remaining_145_s_against_20_101_15_15_is_a_skip(remaining_ms: int, fits: bool) -> None:
    budget = _evaluate(Stage.NOTICE, remaining_ms=remaining_ms, samples=[_sample(101_000)])
    assert budget.needed_ms == 151_000
    assert budget.remaining_ms == remaining_ms
    assert budget.fits is fits


def test_the_clock_skew_comes_off_what_remains() -> None:
    budget = _evaluate(Stage.DURABLE, remaining_ms=20_000, clock_skew_ms=5_000)
    assert (budget.remaining_ms, budget.needed_ms, budget.fits) == (15_000, 15_000, False)


def test_only_saves_of_comparable_load_are_evidence() -> None:
    elsewhere = Sample(
        world_size=8, save_bytes=1_000_000, store="s3://b", durable_ms=9_000, commit_ms=0
    )
    others = [
        elsewhere,
        _sample(9_000, world_size=4),
        _sample(9_000, save_bytes=1_250_001),
        _sample(9_000, save_bytes=799_999),
    ]
    alike = [_sample(2_000), *(_sample(3_000, save_bytes=n) for n in (800_000, 1_250_000))]
    budget = _evaluate(Stage.QUIESCED, samples=others + alike)
    assert budget.durable is not None
    assert budget.durable.sample_count == 3


def test_without_a_save_the_estimate_is_bytes_over_bandwidth_plus_the_fixed_cost() -> None:
    allowances = Allowances(store_bytes_per_s=500_000, barrier_ms=700)
    budget = _evaluate(Stage.QUIESCED, allowances=allowances)
    assert budget.durable is not None
    assert (budget.durable.value_ms, budget.durable.basis) == (2_700, "sizing")


@pytest.mark.parametrize("bytes_per_s", [0, 1])
def test_no_bandwidth_at_all_is_a_byte_a_second(bytes_per_s: int) -> None:
    allowances = Allowances(store_bytes_per_s=bytes_per_s, barrier_ms=0)
    budget = _evaluate(Stage.QUIESCED, allowances=allowances)
    assert budget.durable is not None
    assert budget.durable.value_ms == 1_000_000_000


def test_with_few_samples_the_observed_maximum_counts_if_it_is_larger() -> None:
    samples = [_sample(1_000), _sample(4_000), _sample(4_100)]
    budget = _evaluate(
        Stage.QUIESCED, samples=samples, load=Load(world_size=8, save_bytes=900_000, store=STORE)
    )
    assert budget.durable is not None
    assert (budget.durable.value_ms, budget.durable.basis) == (4_100, "observed_max")
    assert budget.durable.fit is None, "no line was read"


def test_with_299_samples_the_p99_is_a_distribution_free_bound() -> None:
    samples = [_sample(1_000 + n) for n in range(299)]
    budget = _evaluate(Stage.QUIESCED, samples=samples)
    assert budget.durable is not None
    assert (budget.durable.value_ms, budget.durable.basis) == (1_298, "quantile")
    assert budget.durable.sample_count == budget.durable.samples_needed == 299


def test_a_save_of_nothing_says_nothing_of_the_bandwidth() -> None:
    empty = _evaluate(Stage.QUIESCED, samples=[_sample(50_000, save_bytes=0)])
    assert empty.remaining_ms == _evaluate(Stage.QUIESCED).remaining_ms
    assert empty.durable is not None
    assert empty.durable.value_ms == getattr(_evaluate(Stage.QUIESCED).durable, "value_ms", None)


@pytest.mark.parametrize(("term", "needed"), [("quiesce", 59), ("durable", 299), ("commit", 59)])
def test_of_as_few_samples_as_a_bound_needs_the_largest_is_it(term: str, needed: int) -> None:
    """59 for p95, 299 for p99; a median would need 5."""
    samples = [
        Sample(
            world_size=8,
            save_bytes=1_000_000,
            store=STORE,
            durable_ms=50_000 + n,
            commit_ms=50_000 + n,
            quiesce_ms=50_000 + n,
        )
        for n in range(needed)
    ]
    for given in (samples[:-1], samples):
        evidence = getattr(_evaluate(Stage.NOTICE, samples=given), term)
        assert evidence.value_ms == 50_000 + len(given) - 1
        assert evidence.samples_needed == needed
        assert (evidence.basis == "quantile") is (given is samples)


def test_of_several_bandwidths_the_slowest_counts() -> None:
    """Neither save is of a comparable size: only what each says of the store is left."""
    budget = _evaluate(
        Stage.QUIESCED,
        samples=[_sample(4_000, save_bytes=2_000_000), _sample(10_000, save_bytes=10_000_000)],
    )
    assert budget.durable is not None
    assert budget.durable.value_ms == 2_000


def test_a_tiny_save_says_nothing_of_a_large_one() -> None:
    """Its half a second is fixed cost, not bandwidth."""
    samples = [_sample(500, save_bytes=1_000), _sample(5_000, save_bytes=1_000_000_000)]
    large = Load(world_size=8, save_bytes=2_000_000_000, store=STORE)
    budget = _evaluate(Stage.QUIESCED, samples=samples, load=large)
    assert budget.durable is not None
    assert (budget.durable.value_ms, budget.durable.basis) == (10_000, "fitted")
    between = Load(world_size=8, save_bytes=500_000_500, store=STORE)
    budget = _evaluate(Stage.QUIESCED, samples=samples, load=between)
    assert budget.durable is not None
    assert budget.durable.value_ms == 2_750


def test_the_line_is_said_as_a_fixed_cost_and_a_rate() -> None:
    """2 s fixed and 4 s for every GiB, read between 1 and 3 GiB."""
    saves = [SizedSave(8, 1 << 30, 6_000), SizedSave(8, 3 << 30, 14_000), SizedSave(8, 0, 9_000)]
    assert fitted(saves, SizedSave(8, 2 << 30)) == Fit(
        over=FitOver.BYTES,
        sample_count=2,
        bytes_min=1 << 30,
        bytes_max=3 << 30,
        bytes_asked=2 << 30,
        fixed_ms=2_000,
        ms_per_gib=4_000,
        value_ms=10_000,
    )
    assert fitted(saves[2:], SizedSave(8, 1)) is None
    known = fitted(saves, SizedSave(8, 1 << 30))
    assert known is not None
    assert (known.fixed_ms, known.ms_per_gib) == (0, 6_000), "the piece that ends with that save"


def test_a_save_that_was_faster_than_those_around_it_does_not_bend_the_line_down() -> None:
    saves = [SizedSave(8, 100, 10_000), SizedSave(8, 200, 11_000), SizedSave(8, 300, 20_000)]
    taken = [fitted(saves, SizedSave(8, size)) for size in (100, 200, 300)]
    assert [fit and fit.value_ms for fit in taken] == [10_000, 15_000, 20_000]


def test_a_larger_save_that_was_faster_promises_nothing() -> None:
    saves = [SizedSave(8, 100, 10_000), SizedSave(8, 200, 8_000)]
    taken = [fitted(saves, SizedSave(8, size)) for size in (50, 150, 200, 400)]
    assert [fit and fit.value_ms for fit in taken] == [5_000, 10_000, 10_000, 20_000]


@pytest.mark.parametrize(
    ("world_size", "durable_ms", "over"),
    [(4, 4_000, "bytes_per_rank"), (8, 2_000, "bytes"), (16, 2_000, "bytes")],
)
def test_after_a_change_of_world_size_the_old_saves_count(
    world_size: int, durable_ms: int, over: str
) -> None:
    """Half the ranks write twice as much each. Twice the ranks may meet the store's own limit."""
    load = Load(world_size=world_size, save_bytes=1_000_000, store=STORE)
    slow = Allowances(store_bytes_per_s=1_000, barrier_ms=0)
    samples = [_sample(2_000), _sample(1_000)]
    durable = _evaluate(Stage.QUIESCED, allowances=slow, samples=samples, load=load).durable
    assert durable is not None
    assert durable.value_ms == durable_ms
    assert durable.basis == "fitted"
    assert durable.fit is not None
    assert (durable.fit.over, durable.fit.sample_count) == (over, 2)


def test_the_slowest_commit_of_another_world_size_is_the_least_that_is_reserved() -> None:
    slow = Sample(world_size=64, save_bytes=1_000_000, store=STORE, durable_ms=1, commit_ms=40_000)
    budget = _evaluate(Stage.SAVING, samples=[slow])
    assert budget.commit is not None
    assert (budget.commit.value_ms, budget.commit.basis) == (40_000, "observed_max")
    assert budget.commit.sample_count == 0
    instant = _evaluate(Stage.SAVING, allowances=replace(RESERVES, commit_ms=0)).commit
    assert instant is not None
    assert (instant.value_ms, instant.basis) == (0, "allowance")
    for commit_ms in (0, RESERVES.commit_ms):
        budget = _evaluate(Stage.SAVING, samples=[replace(slow, commit_ms=commit_ms)])
        assert budget.commit is not None
        assert (budget.commit.value_ms, budget.commit.basis) == (RESERVES.commit_ms, "allowance")


@pytest.mark.parametrize(("quiesce_ms", "waits_ms"), [(5_000, 5_000), (20_000, 18_000)])
def test_ranks_are_waited_for_as_long_as_a_save_still_fits_behind_them(
    quiesce_ms: int, waits_ms: int
) -> None:
    budget = _evaluate(Stage.QUIESCED, clock_skew_ms=2_000, samples=[_sample(10_000)])
    assert quiesce_by_unix_ms(budget, quiesce_ms=quiesce_ms) == NOW + waits_ms
