"""Two real ranks over gloo save, leave, come back in fresh processes, and go on bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drainfsm.cli.main import main
from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.orders import RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.store import open_store
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import JOB, Report, commit_saved, read_reports

WORLD_SIZE = 2
STEPS = 18
PERIODIC_AT = 3
DRAIN_AT = 10
RANK_SCRIPT = Path(__file__).parent / "checkpoint_rank.py"
JOB_S_MAX = 200

JOBS = [("ddp", "stateful"), ("ddp", "plain"), ("fsdp2", "plain"), ("fsdp2", "workers")]


def run_ranks(
    tmp_path: Path, scenarios: list[dict[str, Any]], *, codes: tuple[int, ...] = (0, 0)
) -> list[str]:
    """Both ranks through all scenarios; returns what each wrote to stderr."""
    rendezvous = tmp_path / f"rendezvous-{uuid.uuid4().hex}"
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
                str(WORLD_SIZE),
                str(rendezvous),
                json.dumps(scenarios),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        errors = [process.communicate(timeout=JOB_S_MAX)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = tuple(process.returncode for process in processes)
    assert found == codes, "\n".join(errors)
    return errors


def results(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads((directory / f"result{rank}.json").read_text()) for rank in range(WORLD_SIZE)
    ]


def of(reports: list[Report], kind: str, generation: str) -> list[Report]:
    return [r for r in reports if r.kind == kind and r.generation_id == generation]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of job once uninterrupted, and once with a periodic save and a drain."""
    root = tmp_path_factory.mktemp("jobs")
    scenarios: list[dict[str, Any]] = []
    for model, loader in JOBS:
        name = f"{model}-{loader}"
        common = {"model": model, "loader": loader, "store": str(root / name / "store")}
        scenarios.append(
            common
            | {"directory": str(root / name / "whole"), "steps": STEPS, "checkpointed": False}
        )
        scenarios.append(
            common
            | {
                "directory": str(root / name / "first"),
                "steps": STEPS,
                "drain_at": DRAIN_AT,
                "settings": {"every_steps": PERIODIC_AT + 1},
            }
        )
    (root / "stderr").write_text("".join(run_ranks(root, scenarios)))
    return root


PERIODIC = generation_id(epoch=1, step=PERIODIC_AT, saver="p")
DRAIN = generation_id(epoch=1, step=DRAIN_AT, saver="d1")


@pytest.fixture(scope="module")
def committed(saved: Path) -> dict[str, RestoreTarget]:
    targets = {}
    for model, loader in JOBS:
        name = f"{model}-{loader}"
        store = open_store(str(saved / name / "store"))
        for step, generation in ((PERIODIC_AT, PERIODIC), (DRAIN_AT, DRAIN)):
            targets[f"{name}-{step}"] = commit_saved(
                store,
                saved / name / "first",
                generation=generation,
                step=step,
                world_size=WORLD_SIZE,
            )
    return targets


@pytest.fixture(scope="module")
def resumed(saved: Path, committed: dict[str, RestoreTarget]) -> Path:
    """Fresh processes: every job from its drain, and one from its periodic save."""
    scenarios: list[dict[str, Any]] = []
    for model, loader in JOBS:
        name = f"{model}-{loader}"
        for step in (DRAIN_AT, PERIODIC_AT) if loader == "plain" else (DRAIN_AT,):
            scenarios.append(
                {
                    "model": model,
                    "loader": loader,
                    "store": str(saved / name / "store"),
                    "directory": str(saved / name / f"from{step}"),
                    "steps": STEPS,
                    "settings": {"verify": "checksums"},
                    "target": msgspec.to_builtins(committed[f"{name}-{step}"]),
                }
            )
    for model in ("plain", "fsdp2"):
        scenarios.append(
            {
                "model": model,
                "loader": "plain",
                "store": str(saved / "ddp-plain" / "store"),
                "directory": str(saved / "swapped" / model),
                "steps": DRAIN_AT + 2,
                "target": msgspec.to_builtins(committed[f"ddp-plain-{DRAIN_AT}"]),
            }
        )
    run_ranks(saved, scenarios)
    return saved


@pytest.mark.parametrize(("model", "loader"), JOBS)
def test_saving_does_not_disturb_training(saved: Path, model: str, loader: str) -> None:
    whole = results(saved / f"{model}-{loader}" / "whole")
    first = results(saved / f"{model}-{loader}" / "first")
    for rank in range(WORLD_SIZE):
        assert first[rank]["seen"] == whole[rank]["seen"][: DRAIN_AT + 1]
    assert whole[0]["seen"] != whole[1]["seen"], "ranks see different data"


@pytest.mark.parametrize(("model", "loader"), JOBS)
def test_a_resumed_job_is_bit_for_bit_the_uninterrupted_one(
    resumed: Path, model: str, loader: str
) -> None:
    """Losses, learning rates, dropout, sample ids; over the end of an epoch."""
    directory = resumed / f"{model}-{loader}"
    whole = results(directory / "whole")
    for step in (DRAIN_AT, PERIODIC_AT) if loader == "plain" else (DRAIN_AT,):
        again = results(directory / f"from{step}")
        for rank in range(WORLD_SIZE):
            assert again[rank]["first"] == step + 1
            assert again[rank]["seen"] == whole[rank]["seen"][step + 1 :]
    ids = [sample for entry in whole[0]["seen"] for sample in entry[3]]
    assert len(ids) > len(set(ids)), "an epoch ends within the run"


@pytest.mark.parametrize(("model", "loader"), JOBS)
def test_a_drill_in_one_process_loads_what_two_ranks_have_saved(
    saved: Path,
    committed: dict[str, RestoreTarget],
    model: str,
    loader: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"{model}-{loader}"
    monkeypatch.chdir(saved)
    for step in (PERIODIC_AT, DRAIN_AT):
        generation = committed[f"{name}-{step}"].generation_id
        of = ["--store", str(saved / name / "store"), "--job", JOB, "--generation", generation]
        assert main(["drill", "restore", *of, "--json"]) == 0
        event = msgspec.json.decode(capsys.readouterr().out, type=CheckpointDrilled)
        assert (event.outcome, event.verification, event.step) == ("verified", "loaded", step)
        assert "not unpickled" not in event.detail


def test_ddp_plain_and_fsdp2_take_each_others_checkpoints(resumed: Path) -> None:
    """The first loss after the swap is the same; later ones are computed in another way."""
    whole = results(resumed / "ddp-plain" / "whole")
    for model in ("plain", "fsdp2"):
        swapped = results(resumed / "swapped" / model)
        for rank in range(WORLD_SIZE):
            assert swapped[rank]["seen"] == whole[rank]["seen"][DRAIN_AT + 1 : DRAIN_AT + 2]


@pytest.mark.parametrize(("model", "loader"), JOBS)
def test_each_rank_stages_and_writes_its_share_and_reports_it(
    saved: Path, committed: dict[str, RestoreTarget], model: str, loader: str
) -> None:
    reports = read_reports(saved / f"{model}-{loader}" / "first")
    for generation in (PERIODIC, DRAIN):
        staged = [report.size_bytes for report in of(reports, "staged", generation)]
        assert len(staged) == WORLD_SIZE
        assert max(staged) <= 0.65 * sum(staged)
        durable = of(reports, "durable", generation)
        names = [[entry.name for entry in report.entries] for report in durable]
        assert names[0] == [".metadata", "__0_0_0.distcp", "__0_1_0.distcp"]
        assert names[1] == ["__1_0_0.distcp", "__1_1_0.distcp"]
        assert {e.rank for r in durable for e in r.entries if e.name.startswith("__1")} == {1}
    assert {report.thread for report in of(reports, "staged", PERIODIC)} != {"MainThread"}
    kinds = [r.kind for r in reports if r.rank == 0 and r.generation_id in ("", DRAIN)]
    assert kinds[-4:] == ["quiesced", "staged", "durable", "size"]


def test_a_periodic_save_in_flight_is_finished_before_quiesced_is_said(saved: Path) -> None:
    for model, loader in JOBS:
        reports = read_reports(saved / f"{model}-{loader}" / "first")
        for rank in range(WORLD_SIZE):
            kinds = [(r.kind, r.generation_id) for r in reports if r.rank == rank]
            last_periodic = generation_id(epoch=1, step=7, saver="p")
            assert kinds.index(("durable", last_periodic)) < kinds.index(("quiesced", ""))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full disk, a directory that is taken, a job of another size, and a rank that dies."""
    root = tmp_path_factory.mktemp("faults")
    store = str(root / "store")
    taken = generation_id(epoch=1, step=3, saver="p")
    new_store(store).create_tree(f"generations/{taken}/")
    target = RestoreTarget(
        generation_id="e000001-s000000000001-p", manifest_digest="", step=1, world_size=4
    )
    full = {"steps": 8, "limit_rank": 1, "limit_bytes": 5_000, "settings": {"every_steps": 2}}
    resized = {"steps": 1, "target": msgspec.to_builtins(target)}
    after = {"steps": 12, "drain_at": 11}
    hung = {
        "steps": 4,
        "settings": {"every_steps": 2},
        "hang_rank": 1,
        "hang_at": 1,
        "hang_s": 6,
        "peer_wait_s": 2,
    }
    died = {"steps": 9, "die_rank": 1, "die_at": 8, "settings": {"every_steps": 9}}
    scenarios: list[dict[str, Any]] = [
        {"model": "plain", "loader": "plain", "store": store, "directory": str(root / name)}
        | scenario
        for name, scenario in (
            ("full", full),
            ("resized", resized),
            ("after", after),
            ("hung", hung),
            ("died", died),
        )
    ]
    errors = run_ranks(root, scenarios, codes=(1, 9))  # rank 0: its barrier at the end fails
    (root / "stderr").write_text("".join(errors))
    return root


def test_what_one_rank_cannot_write_fails_the_save_everywhere_and_only_that_save(
    faults: Path,
) -> None:
    reports = read_reports(faults / "full")
    for step, says in ((1, "File too large"), (3, "used once"), (5, "File too large")):
        generation = generation_id(epoch=1, step=step, saver="p")
        failed = of(reports, "failed", generation)
        assert [report.rank for report in failed] == [0, 1]
        assert all(says in report.reason for report in failed), failed
        assert of(reports, "durable", generation) == []
        assert "rank 1" in failed[0].reason or step == 3
    for result in results(faults / "full"):
        assert len(result["seen"]) == 8, "a failed save never stops training"
    generation = generation_id(epoch=1, step=11, saver="d1")
    store = open_store(str(faults / "store"))
    commit_saved(store, faults / "after", generation=generation, step=11, world_size=WORLD_SIZE)


def test_parameters_that_are_called_alike_and_differ_are_warned_about_once_a_job(
    saved: Path, faults: Path
) -> None:
    """The plain model has nothing that keeps its replicas equal; DDP's and FSDP2's are."""
    assert "differ between ranks" not in (saved / "stderr").read_text()
    text = (faults / "stderr").read_text()
    assert "parameter(s) differ between ranks and are saved once, from one of them: params/" in text
    jobs_that_planned = 2
    assert text.count("differ between ranks") == jobs_that_planned


def test_a_job_of_another_size_is_refused_on_every_rank(faults: Path) -> None:
    for result in results(faults / "resized"):
        assert "RestoreRefusedError" in result["error"]
        assert "saved by 4 ranks, and this job has 2" in result["error"]


def test_a_rank_that_hangs_is_waited_for_a_bounded_time(faults: Path) -> None:
    """Afterwards the ranks can agree on nothing more: later saves are reported as failed at once,
    and training goes on."""
    reports = read_reports(faults / "hung")
    for step in (1, 3):
        failed = of(reports, "failed", generation_id(epoch=1, step=step, saver="p"))
        assert [report.rank for report in failed] == [0, 1]
    first, later = (r.reason for r in reports if r.kind == "failed" and r.rank == 0)
    assert "lost touch with another rank" in first
    assert "the ranks can no longer agree" in later
    assert [len(result["seen"]) for result in results(faults / "hung")] == [4, 4]


def test_a_rank_that_dies_does_not_leave_the_others_waiting(faults: Path) -> None:
    generation = generation_id(epoch=1, step=8, saver="p")
    failed = of(read_reports(faults / "died"), "failed", generation)
    assert [report.rank for report in failed] == [0]
    assert "lost touch with another rank" in failed[0].reason
    assert len(json.loads((faults / "died" / "result0.json").read_text())["seen"]) == 9
