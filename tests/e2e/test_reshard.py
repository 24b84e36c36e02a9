"""Four real ranks save, two go on with it, and then four again: DDP and FSDP2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drainfsm.core.orders import RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.store import open_store
from drainfsm_kit.ranks import Report, commit_saved, read_reports

RANK_SCRIPT = Path(__file__).parent / "checkpoint_rank.py"
JOB_S_MAX = 240
MODELS = ("ddp", "fsdp2")
RUNS = ((4, 3), (2, 6), (4, 9))
"""Ranks of one attempt after the other, and the step at which it drains."""

BATCH = 4


def run_ranks(root: Path, name: str, scenarios: list[dict[str, Any]], *, ranks: int) -> None:
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-W",
                "ignore:'set_vital' is deprecated",  # torchdata 0.11 under torch 2.13
                str(RANK_SCRIPT),
                str(rank),
                str(ranks),
                str(root / f"rendezvous-{name}"),
                json.dumps(scenarios),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        errors = [process.communicate(timeout=JOB_S_MAX)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(errors)


def scenario(root: Path, model: str, number: int, **more: Any) -> dict[str, Any]:
    drain_at = RUNS[number][1]
    settings = more.pop("settings", {"reshard": True, "layout": {"dp": RUNS[number][0]}})
    return {
        "model": model,
        "loader": "elastic",
        "store": str(root / model / "store"),
        "directory": str(root / model / f"run{number}"),
        "steps": drain_at + 1,
        "drain_at": drain_at,
        "settings": settings,
        "digests": True,
    } | more


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reshard")
    targets: dict[str, RestoreTarget] = {}
    for number, (ranks, drain_at) in enumerate(RUNS):
        scenarios = []
        for model in MODELS:
            target = {"target": msgspec.to_builtins(targets[model])} if targets else {}
            if number == 1:
                refused = {"directory": str(root / model / "refused"), "settings": {}}
                scenarios.append(scenario(root, model, number, **target, **refused))
            scenarios.append(scenario(root, model, number, **target))
        run_ranks(root, str(number), scenarios, ranks=ranks)
        for model in MODELS:
            targets[model] = commit_saved(
                open_store(str(root / model / "store")),
                root / model / f"run{number}",
                generation=generation_id(epoch=1, step=drain_at, saver="d1"),
                step=drain_at,
                world_size=ranks,
                layout={"dp": ranks},
            )
    return root


def results(root: Path, model: str, number: int) -> list[dict[str, Any]]:
    directory = root / model / f"run{number}"
    return [
        json.loads((directory / f"result{rank}.json").read_text())
        for rank in range(RUNS[number][0])
    ]


def restored(root: Path, model: str, number: int) -> list[Report]:
    reports = read_reports(root / model / f"run{number}")
    return [report for report in reports if report.kind == "restored"]


@pytest.mark.parametrize("model", MODELS)
def test_model_and_optimizer_are_bit_for_bit_what_the_other_ranks_left(
    runs: Path, model: str
) -> None:
    left = ""
    for number in range(len(RUNS)):
        of_ranks = results(runs, model, number)
        if left:
            assert {result["restored"] for result in of_ranks} == {left}
            assert {result["first"] for result in of_ranks} == {RUNS[number - 1][1] + 1}
        (left,) = {result["left"] for result in of_ranks}


@pytest.mark.parametrize("model", MODELS)
def test_scheduler_and_data_go_on_where_they_were(runs: Path, model: str) -> None:
    """The scheduler is alike on all ranks; the sampler knows how to be resharded."""
    seen = [
        entry
        for number in range(len(RUNS))
        for result in results(runs, model, number)
        for entry in result["seen"]
    ]
    rates = {step: {rate for at, _, rate, _ in seen if at == step} for step, *_ in seen}
    assert all(len(of_step) == 1 for of_step in rates.values())
    falling = [rates[step].pop() for step in sorted(rates)]
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == len(falling) == RUNS[-1][1] + 1
    given = sorted(sample for *_, samples in seen for sample in samples)
    total = sum(
        ranks * BATCH * (drain_at - before)
        for (ranks, drain_at), before in zip(RUNS, (-1, RUNS[0][1], RUNS[1][1]), strict=True)
    )
    assert len(given) == total
    counts = {given.count(sample) for sample in set(given)}
    assert max(counts) - min(counts) <= 1, "no sample twice before every one came once"


@pytest.mark.parametrize("model", MODELS)
def test_what_starts_anew_is_reported(runs: Path, model: str) -> None:
    for number in (1, 2):
        reports = restored(runs, model, number)
        assert len(reports) == RUNS[number][0]
        assert {report.not_restored for report in reports} == {("random states",)}


@pytest.mark.parametrize("model", MODELS)
def test_without_reshard_every_rank_refuses(runs: Path, model: str) -> None:
    for rank in range(2):
        path = runs / model / "refused" / f"result{rank}.json"
        error = json.loads(path.read_text())["error"]
        assert error.startswith("RestoreRefusedError")
        assert "saved by 4 ranks, and this job has 2" in error
