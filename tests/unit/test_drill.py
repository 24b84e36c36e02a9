"""Rehearsed restores of a real torch checkpoint: what is found, recorded and reported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.checkpoint import drill as loading
from drainfsm.checkpoint.drill import load_generation
from drainfsm.checkpoint.reader import load
from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.core.words import DrillOutcome, Verification
from drainfsm.errors import ManifestMismatchError, RecordUnreadableError
from drainfsm.store import open_store
from drainfsm.store.drills import read_drills, record_drill
from drainfsm.store.generations import generation_prefix, read_manifest
from drainfsm.store.rehearsals import (
    REHEARSALS,
    DrainRehearsed,
    read_rehearsals,
    record_rehearsal,
)
from drainfsm.testing.scenario import Scenario
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import JOB, RecordedPort, commit_saved

Output = pytest.CaptureFixture[str]
DRAIN_AT = 1


class JobsOwn:
    """Has a state that only the job's own code can unpickle."""

    def state_dict(self) -> dict[str, object]:
        return {"position": 7}

    def load_state_dict(self, state: dict[str, object]) -> None:
        raise AssertionError("a drill gives nothing back to the job")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestoreTarget:
    """One committed generation: a model, its optimizer and an object."""
    monkeypatch.chdir(tmp_path)
    port = RecordedPort(
        tmp_path,
        store_url=str(tmp_path / "store"),
        settings=CheckpointSettings(),
        drain_at=DRAIN_AT,
    )
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint = Checkpoint(port, model=model, optimizer=optimizer, loader=JobsOwn())
    for step in range(DRAIN_AT + 1):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        checkpoint.step_done(step)
    generation = generation_id(epoch=1, step=DRAIN_AT, saver="d1")
    store = new_store(tmp_path / "store")
    return commit_saved(store, tmp_path, generation=generation, step=DRAIN_AT, world_size=1)


def _drill(*more: str) -> int:
    return main(["drill", "restore", "--store", "store", "--job", JOB, *more])


def _file(target: RestoreTarget, suffix: str) -> Path:
    directory = Path("store") / generation_prefix(target.generation_id)
    return next(path for path in directory.iterdir() if path.name.endswith(suffix))


def test_a_whole_generation_is_loaded_and_put_on_record(
    target: RestoreTarget, capsys: Output
) -> None:
    assert _drill("--json") == 0
    event = msgspec.json.decode(capsys.readouterr().out, type=CheckpointDrilled)
    assert event.outcome == "verified"
    assert event.verification == "loaded"
    assert (event.generation_id, event.manifest_digest, event.step) == (
        target.generation_id,
        target.manifest_digest,
        DRAIN_AT,
    )
    assert "8 tensors" in event.detail  # weight and bias, and three of AdamW for each
    assert [drill for _, drill in read_drills(open_store("store"), job_id=JOB)] == [event]


def test_a_flipped_bit_fails_the_drill_and_that_too_is_on_record(
    target: RestoreTarget, capsys: Output
) -> None:
    file = _file(target, ".distcp")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert _drill() == 1
    printed = capsys.readouterr().out
    assert "failed: " in printed
    assert " bytes, after " in printed
    assert "checksums in" not in printed
    ((_, event),) = read_drills(open_store("store"), job_id=JOB)
    assert event.outcome == "failed"
    assert "it was changed" in event.detail


@pytest.mark.parametrize("suffix", [".distcp", ".metadata", "manifest.json"])
def test_a_missing_file_fails_the_drill(target: RestoreTarget, suffix: str) -> None:
    _file(target, suffix).unlink()
    assert _drill() == 1
    ((_, event),) = read_drills(open_store("store"), job_id=JOB)
    assert (event.outcome, event.verification) == ("failed", "checksums")
    assert "missing" in event.detail


def test_the_rank_count_of_the_manifest_is_looked_for_in_the_checkpoint(
    target: RestoreTarget,
) -> None:
    store = open_store("store")
    manifest = read_manifest(
        store, generation_id=target.generation_id, digest=target.manifest_digest
    )
    with pytest.raises(ManifestMismatchError, match="lacks ranks/00001"):
        load_generation(store, msgspec.structs.replace(manifest, world_size=2))
    with pytest.raises(ManifestMismatchError, match="is of step 1, not 5"):
        load_generation(store, msgspec.structs.replace(manifest, step=5))


def test_tensors_are_loaded_in_pieces(
    target: RestoreTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("store")
    manifest = read_manifest(
        store, generation_id=target.generation_id, digest=target.manifest_digest
    )
    whole = load_generation(store, manifest)
    held: list[int] = []

    def recorded(reader: Any, metadata: Any, piece: dict[str, Any]) -> None:
        held.append(len(piece))
        load(reader, metadata, piece)

    monkeypatch.setattr(loading, "PIECE_BYTES", 1)
    monkeypatch.setattr(loading, "load", recorded)
    assert load_generation(store, manifest) == whole
    assert held == [1] * (whole.tensor_count + whole.object_count)


def test_an_object_that_needs_the_jobs_code_is_named_and_fails_nothing(
    target: RestoreTarget, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_load = torch.load

    def without_code(*given: Any, **options: Any) -> Any:
        if options.get("weights_only") is False:
            raise ModuleNotFoundError("No module named 'job'")
        return real_load(*given, **options)

    monkeypatch.setattr(torch, "load", without_code)
    assert _drill() == 0
    printed = capsys.readouterr().out
    assert "not unpickled, for want of the job's code: " in printed
    assert "ranks/00000" in printed


def test_what_cannot_be_loaded_fails_at_loading(
    target: RestoreTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(store: object, manifest: object) -> None:
        raise ManifestMismatchError("a tensor that is none")

    monkeypatch.setattr(loading, "load_generation", damaged)
    assert _drill() == 1
    ((_, event),) = read_drills(open_store("store"), job_id=JOB)
    assert (event.outcome, event.verification) == ("failed", "loaded")
    assert event.detail == "a tensor that is none"


def test_without_torch_only_checksums_are_verified_and_the_event_says_so(
    target: RestoreTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainfsm.cli.drill.find_spec", lambda _: None)
    assert _drill() == 0
    ((_, event),) = read_drills(open_store("store"), job_id=JOB)
    assert (event.outcome, event.verification) == ("verified", "checksums")
    assert "torch is not installed" in event.detail


def test_checksums_only(target: RestoreTarget, capsys: Output) -> None:
    assert _drill("--checksums-only") == 0
    ((_, event),) = read_drills(open_store("store"), job_id=JOB)
    assert (event.outcome, event.verification) == ("verified", "checksums")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["restore", "--job", JOB, "--store", "store", "--generation", "x"], 2, "no commit names"),
        (["restore", "--job", JOB, "--store", "empty"], 2, "has committed nothing"),
        (["restore", "--job", "other", "--store", "store"], 2, "belongs to job"),
        (["restore", "--job", JOB], 2, "--store is missing"),
        (
            ["restore", "--job", JOB, "--store", "store", "--checksums-only", "--", "true"],
            2,
            "leave out one of the two",
        ),
        (["resotre"], 2, "invalid choice"),
    ],
)
def test_what_cannot_be_drilled_is_said_and_recorded_nowhere(
    target: RestoreTarget, argv: list[str], code: int, message: str, capsys: Output
) -> None:
    assert main(["drill", *argv]) == code
    assert message in capsys.readouterr().err
    assert read_drills(open_store("store"), job_id=JOB) == []


@pytest.mark.parametrize("command", ["no-such", "./store"])
def test_a_command_that_cannot_be_started_says_nothing_of_the_checkpoint(
    target: RestoreTarget, command: str
) -> None:
    of = ["drill", "restore", "--store", "store", "--job", JOB, "--", command]
    done = subprocess.run(
        [sys.executable, "-m", "drainfsm", *of], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert f"drainfsm: cannot start {command!r}" in done.stderr
    assert read_drills(open_store("store"), job_id=JOB) == []


def test_a_pruned_generation_is_refused_as_such(target: RestoreTarget, capsys: Output) -> None:
    (Path("store") / generation_prefix(target.generation_id) / "pruned.json").write_text("{}")
    _file(target, "manifest.json").unlink()
    assert _drill() == 1
    assert "has been pruned" in capsys.readouterr().err


def test_the_report_tells_of_drills_when_it_is_given_the_store(
    target: RestoreTarget, tmp_path: Path, capsys: Output
) -> None:
    log = tmp_path / "job.jsonl"
    log.write_bytes(encode_lines(Scenario().history))
    store = open_store("store")
    for at, outcome in ((2_000, "failed"), (1_000, "verified")):
        event = CheckpointDrilled(
            generation_id=target.generation_id,
            manifest_digest=target.manifest_digest,
            step=1,
            verification=Verification.CHECKSUMS,
            drill_ms=5,
            outcome=DrillOutcome(outcome),
        )
        record_drill(store, event, job_id=JOB, now_unix_ms=at)
    for at, scenario, passed, job in (
        (3_000, "slow-store", True, JOB),
        (2_000, "slow-store", False, JOB),
        (4_000, "stuck-rank", False, JOB),
        (5_000, "maintenance", True, "another"),
    ):
        rehearsed = DrainRehearsed(
            job_id=job,
            at_unix_ms=at,
            scenario=scenario,
            passed=passed,
            decision="saved",
            wrong="" if passed else "valid_step_after",
        )
        record_rehearsal(store, rehearsed)
    report = ["report", "--file", str(log), "--job", JOB]
    assert main([*report, "--store", "store"]) == 0
    printed = capsys.readouterr().out
    assert "restores rehearsed          2, 1 failed; last 1970-01-01 00:00:02.000" in printed
    assert re.search(r"last good drill  +1970-01-01 00:00:01\.000, \d+\.\d days ago", printed)
    failing = "3, of 2 scenarios; failing: stuck-rank (valid_step_after)"
    assert f"drains rehearsed            {failing}" in printed
    assert re.search(r"last good rehearsal +1970-01-01 00:00:03\.000, \d+\.\d days ago", printed)
    assert main([*report, "--store", "store", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["jobs"][0]
    assert [one["drill"]["outcome"] for one in told["drills"]] == ["verified", "failed"]
    assert [one["at_unix_ms"] for one in told["rehearsals"]] == [2_000, 3_000, 4_000]
    assert told["last_good_rehearsal_unix_ms"] == 3_000
    assert main(report) == 0
    assert "restores rehearsed" not in capsys.readouterr().out


def test_a_rehearsal_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    store.put(f"{REHEARSALS}x.json", b"{}")
    with pytest.raises(RecordUnreadableError, match=r"rehearsals/x\.json"):
        read_rehearsals(store, job_id=JOB)


def test_scenarios_are_not_played_where_they_could_not_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINFSM_JOB", raising=False)
    assert main(["drill", "maintenance", "--store", "store", "--", "true"]) == 2
    assert "--job is missing" in capsys.readouterr().err
    wrong = ["--store", str(tmp_path / "no" / "store"), "--job", JOB]
    assert main(["drill", "maintenance", *wrong, "--", "true"]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'no'} does not exist" in told
    assert "drilling" not in told
    assert not list(tmp_path.iterdir())


def test_a_drill_on_record_is_a_record_that_replay_reads(
    target: RestoreTarget, capsys: Output
) -> None:
    assert _drill("--checksums-only") == 0
    (path,) = Path("store", "drills").iterdir()
    capsys.readouterr()
    assert main(["replay", "--file", str(path)]) == 0
    assert "checkpoint_drilled" in capsys.readouterr().out
