"""How long a window must be: the customer's figures, the log's shares, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm.cli.main import main
from drainfsm.cli.plan import quantity
from drainfsm.core import events as e
from drainfsm.core.budget import Allowances, Load, Sample, Stage, evaluate
from drainfsm.core.codec import encode_lines
from drainfsm.errors import ConfigError
from drainfsm.policy.interval import interval
from drainfsm.policy.plan import plan
from drainfsm.policy.plan_text import WIDTH, WINDOW, plan_text
from drainfsm.policy.sizing import model_bytes
from drainfsm.testing.scenario import STORE, Scenario

NONE = Allowances(
    handler_ms=0,
    quiesce_ms=0,
    commit_ms=0,
    exit_margin_ms=0,
    clock_skew_ms=0,
    barrier_ms=0,
)


def sample(durable_ms: int, *, quiesce_ms: int | None = None) -> Sample:
    return Sample(
        world_size=4,
        save_bytes=1_000,
        store=STORE,
        durable_ms=durable_ms,
        commit_ms=100,
        quiesce_ms=quiesce_ms,
    )


def test_seventy_billion_parameters_on_eight_nodes() -> None:
    size = model_bytes(params=70_000_000_000, dtype="fp16", optimizer="adamw")
    made = plan(save_bytes=size, allowances=NONE, node_count=8, bytes_per_s=8 * 4_000_000_000)
    assert (size, made.node_bytes) == (420_000_000_000, 52_500_000_000)
    assert made.durable.value_ms == 13_125
    assert (made.needed_ms, made.grace_s) == (13_125, 14)


def test_every_allowance_is_a_term() -> None:
    allowances = Allowances(
        handler_ms=1, quiesce_ms=20, commit_ms=300, exit_margin_ms=4_000, clock_skew_ms=50_000
    )
    made = plan(save_bytes=10**6, allowances=allowances, bytes_per_s=10**6)
    assert made.needed_ms == 1 + 20 + 300 + 4_000 + 50_000 + 1_000 + 1_000


@given(
    save_bytes=st.integers(1, 10**13),
    bytes_per_s=st.integers(1, 10**12),
    durations=st.lists(st.integers(1, 10**6), max_size=30),
    handler_ms=st.integers(0, 5_000),
)
def test_the_grace_of_a_plan_is_the_smallest_whole_second_in_which_the_rule_saves(
    save_bytes: int, bytes_per_s: int, durations: list[int], handler_ms: int
) -> None:
    allowances = Allowances(handler_ms=handler_ms, store_bytes_per_s=bytes_per_s)
    samples = [sample(one) for one in durations]
    made = plan(save_bytes=save_bytes, allowances=allowances, samples=samples)

    def saves(grace_s: int) -> bool:
        return evaluate(
            stage=Stage.NOTICE,
            now_unix_ms=handler_ms,
            deadline_unix_ms=grace_s * 1_000,
            clock_skew_ms=allowances.clock_skew_ms,
            allowances=allowances,
            samples=samples,
            load=Load(
                world_size=4 if samples else 1,
                save_bytes=save_bytes,
                store=STORE if samples else "",
            ),
        ).fits

    assert saves(made.grace_s)
    assert not saves(made.grace_s - 1)


@given(
    saves=st.lists(
        st.tuples(st.integers(1, 10**5), st.integers(0, 10**4)), min_size=1, max_size=12
    ),
    window_ms=st.integers(0, 120_000),
)
def test_shares_count_every_pair_of_a_save_and_a_wait(
    saves: list[tuple[int, int]], window_ms: int
) -> None:
    samples = [sample(durable, quiesce_ms=quiesce) for durable, quiesce in saves]
    made = plan(save_bytes=1_000, allowances=NONE, samples=samples, windows_ms=[window_ms])
    totals = [durable + 100 + quiesce for durable, _ in saves for _, quiesce in saves]
    (chance,) = made.chances
    assert chance.probability == sum(total < window_ms for total in totals) / len(totals)
    for found in made.windows:
        fitting = sum(total < found.window_ms for total in totals) / len(totals)
        shorter = sum(total < found.window_ms - 1 for total in totals) / len(totals)
        assert fitting >= found.share - 1e-9
        assert shorter < found.share


def test_a_bound_needs_as_many_saves_as_the_rule_does() -> None:
    few = plan(save_bytes=1_000, allowances=NONE, samples=[sample(100)] * 58)
    enough = plan(save_bytes=1_000, allowances=NONE, samples=[sample(100)] * 59)
    assert [found.bound_ms is None for found in few.windows] == [False, True, True]
    assert [found.bound_ms for found in enough.windows] == [201, 201, None]


def test_platforms_that_cannot_be_helped_are_told_from_settings_that_can() -> None:
    made = plan(save_bytes=10**9, allowances=Allowances())
    text = "\n".join(plan_text(made))
    verdicts = {verdict.window.platform: verdict for verdict in made.platforms}
    assert not verdicts["GKE Spot"].fits
    assert verdicts["GKE Spot"].spare_ms == 15_000 - made.needed_ms
    assert "NOT POSSIBLE" in text
    assert "docker stop               too short" in text
    assert f"terminationGracePeriodSeconds: {made.grace_s}" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "allowances",
    [Allowances(), Allowances(barrier_ms=0, commit_ms=0, clock_skew_ms=30_000), NONE],
)
def test_the_terms_are_drawn_behind_one_another_over_the_whole_window(
    allowances: Allowances,
) -> None:
    made = plan(save_bytes=10**9, allowances=allowances)
    bars = [line.split("|")[1] for line in plan_text(made) if line.count("|") == 2]
    assert len(bars) == 6
    assert {len(bar) for bar in bars} == {WINDOW}
    assert all(max(map(len, line.splitlines())) <= WIDTH for line in plan_text(made) if line)
    drawn = ["".join(column).strip() for column in zip(*bars, strict=True)]
    assert drawn == ["#"] * WINDOW, "each column is of one term"
    assert abs(bars[2].count("#") - WINDOW * made.durable.value_ms / made.needed_ms) <= 1


def test_what_bytes_take_is_told_from_the_fixed_cost() -> None:
    made = plan(
        save_bytes=420 * 10**9, allowances=Allowances(), node_count=8, bytes_per_s=32 * 10**9
    )
    assert "13.1 s of bytes, 1.0 s fixed cost" in "\n".join(plan_text(made))


def test_the_interval_between_periodic_saves() -> None:
    found = interval(save_cost_ms=10_000, mtbf_ms=10 * 3_600_000)
    assert found.young_ms == round(math.sqrt(2 * 10_000 * 36_000_000))
    assert 0 < found.young_ms - found.daly_ms < found.save_cost_ms
    assert interval(save_cost_ms=5_000, mtbf_ms=1_000).daly_ms == 1_000
    with pytest.raises(ValueError, match="more than 0"):
        interval(save_cost_ms=0, mtbf_ms=1)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("420GB", 420 * 10**9),
        ("52.5 GiB", round(52.5 * 2**30)),
        ("4GB/s", 4 * 10**9),
        ("70e9", 70 * 10**9),
        ("1_000", 1_000),
        ("1e-1", None),
        ("-5", None),
        ("0", None),
        ("nan", None),
        ("9" * 400, None),
        ("1e99", None),
        ("1e18", 10**18),
        ("1e4P", None),
        ("12 parsecs", None),
    ],
)
def test_sizes_as_people_write_them(text: str, count: int | None) -> None:
    if count is not None:
        assert quantity("--bytes", text) == count
        return
    with pytest.raises(ConfigError, match="not a size such as"):
        quantity("--bytes", text)


def log_with_a_save(directory: Path) -> Path:
    scenario = Scenario()
    scenario.wait(9_000).when(
        e.CheckpointCommitted(
            generation_id="e000001-s000000000040-p",
            manifest_digest="sha256:00",
            slot=2,
            step=40,
            sample=sample(400),
        )
    )
    path = directory / "log.jsonl"
    path.write_bytes(encode_lines(scenario.history))
    return path


def test_a_log_says_how_large_the_checkpoint_is_and_how_long_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_with_a_save(tmp_path)
    assert main(["plan", "--file", str(path), "--json", "--window", "10", "--window", "60"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["save_bytes"], made["sample_count"]) == (1_000, 1)
    assert made["bandwidth_basis"] == "measured"
    assert [chance["probability"] for chance in made["chances"]] == [0.0, 1.0]


def test_a_damaged_log_is_said_whether_a_plan_comes_of_it_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_with_a_save(tmp_path)
    path.write_bytes(path.read_bytes() + b"{}\n")
    assert main(["plan", "--file", str(path)]) == 1
    told = capsys.readouterr()
    assert "comparable saves on record" in told.out
    assert str(path) in told.err
    path.write_bytes(b"no log\n")
    assert main(["plan", "--file", str(path)]) == 2
    told = capsys.readouterr()
    assert str(path) in told.err
    assert "how large is the checkpoint" in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "how large is the checkpoint"),
        (["--params", "7e9", "--optimizer", "adamm"], "--optimizer adamm is not known"),
        (["--params", "7e9", "--dtype", "fp12"], "--dtype fp12 is not known"),
        (["--bytes", "1GB", "--bandwidth", "1GB", "--node-bandwidth", "1GB"], "not both"),
        (["--bytes", "1GB", "--nodes", "0"], "more than 0"),
        (["--bytes", "1GB", "--mtbf", "0"], "more than 0"),
        (["--bytes", "1GB", "--window", "30"], "no log of comparable saves"),
        (["--bytes", "1GB", "--params", "7e9"], "--bytes or --params, not both"),
        (["--bytes", "1GB", "--window", "inf"], "--window: inf is not"),
        (["--bytes", "1GB", "--window", "-1"], "--window: -1 is not"),
        (["--bytes", "1GB", "--mtbf", "nan"], "--mtbf: nan is not"),
        (["--bytes", "1GB", "--mtbf", "1e300"], "--mtbf: 1e300 is not"),
        (["--bytes", "1GB", "--mtbf", "1", "--save-cost", "-4"], "--save-cost: -4 is not"),
        (["--bytes", "1GB", "--save-cost", "4"], "Give --mtbf"),
        (["--bytes", "1GB", "--exit-margin-ms", "-5"], "exit_margin_ms: -5"),
        (["--bytes", "1GB", "--store-bytes-per-s", "0"], "store_bytes_per_s: 0"),
    ],
)
def test_what_a_plan_cannot_be_made_of(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err
