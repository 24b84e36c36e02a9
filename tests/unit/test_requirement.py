"""What a replacement must have, from a store; and one machine compared with it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from drainfsm.cli.main import main
from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, Digests
from drainfsm.core.requirement import Requirement
from drainfsm.core.words import DrillOutcome, Verification
from drainfsm.doctor import storage
from drainfsm.policy.requirement import Offer, compare
from drainfsm.store.drills import record_drill
from drainfsm.testing.stores import new_store
from drainfsm_kit.past import leave

ROOT = Path(__file__).parents[2]
CAPACITY = Capacity(
    node_count=2,
    accelerator_count=16,
    topology="nvl72",
    store_bytes_per_s=4_000,
    restore_ms=2_000,
)
NEEDED = Requirement(
    job_id="j",
    node_count=2,
    accelerator_count=15,
    topology="nvl72",
    world_size=16,
    layout={"dp": 16},
    digests=Digests(),
    checkpoint_bytes=1_001,
    memory_bytes=501,
    store="file:///s",
    store_bytes_per_s=4_001,
    restore_ms=1,
    restore_basis="attempt",
    grace_ms=30_000,
    resume_step=5,
)
RIGHT = Offer(
    accelerator_count=8,
    topology="nvl72",
    memory_bytes=501,
    store_reached=True,
    store_bytes_per_s=2_001,
    window_ms=30_000,
)


@pytest.fixture(autouse=True)
def small_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "PROBE_BYTES", 1 << 20)
    monkeypatch.chdir(tmp_path)


def drill(url: str, drill_ms: int, *, outcome: DrillOutcome, how: Verification) -> None:
    event = CheckpointDrilled(
        generation_id="e000001-s000000000001-p",
        manifest_digest="sha256:0",
        step=1,
        verification=how,
        drill_ms=drill_ms,
        outcome=outcome,
    )
    record_drill(new_store(url), event, job_id="j", now_unix_ms=drill_ms)


def asked(store: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["requirement", "--job", "j", "--store", str(store)]) == 0
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "specs/schemas/requirement.schema.json").read_text())
    jsonschema.validate(told, schema)
    return told


def test_a_requirement_is_what_attempts_and_drills_have_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    made = new_store(store)
    assert main(["requirement", "--job", "j", "--store", str(store)]) == 2
    assert "left a requeue record" in capsys.readouterr().err
    leave(made, epoch=1, cause=Cause.EVICTION, commits=True, capacity=CAPACITY)
    told = asked(store, capsys)
    assert (told["accelerator_count"], told["topology"], told["resume_step"]) == (16, "nvl72", 2)
    assert (told["checkpoint_bytes"], told["memory_bytes"]) == (1, 1)
    assert (told["restore_ms"], told["restore_basis"]) == (2_000, "attempt")
    assert isinstance(told["grace_ms"], int)
    assert told["grace_ms"] > 10_000
    url = str(store)
    drill(url, 9_000, outcome=DrillOutcome.FAILED, how=Verification.LOADED)
    drill(url, 8_000, outcome=DrillOutcome.VERIFIED, how=Verification.CHECKSUMS)
    assert asked(store, capsys)["restore_basis"] == "attempt"
    drill(url, 3_000, outcome=DrillOutcome.VERIFIED, how=Verification.RESTORED)
    told = asked(store, capsys)
    assert (told["restore_ms"], told["restore_basis"]) == (3_000, "drill")


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("accelerator_count", 7, "accelerators"),
        ("topology", "hgx", "topology"),
        ("memory_bytes", 500, "memory"),
        ("store_reached", False, "store"),
        ("store_bytes_per_s", 2_000, "store bandwidth"),
        ("window_ms", 29_999, "window"),
    ],
)
def test_each_thing_that_is_missing_is_found(field: str, value: object, what: str) -> None:
    assert all(match.fits for match in compare(NEEDED, RIGHT))
    worse = msgspec.structs.replace(RIGHT, **{field: value})
    (missing,) = [match.what for match in compare(NEEDED, worse) if match.fits is False]
    assert missing.startswith(what)
    unknown = msgspec.structs.replace(RIGHT, **{field: None})
    assert [match.what for match in compare(NEEDED, unknown) if match.fits is None] == [missing]


def test_this_machine_is_compared_with_what_was_printed_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, file = tmp_path / "store", tmp_path / "requirement.json"
    leave(new_store(store), epoch=1, cause=Cause.EVICTION, commits=True)
    file.write_text(json.dumps(asked(store, capsys)))
    check = ["requirement", "--check", "--requirement", str(file)]
    assert main([*check, "--window", "600"]) == 0
    assert "fits          store: needs file://" in capsys.readouterr().out
    assert main([*check, "--window", "1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["fits"]
    assert [one["what"] for one in told["matches"] if one["fits"] is False] == ["window, ms"]
    store.rename(tmp_path / "elsewhere")
    assert main(check) == 1
    assert "DOES NOT FIT  store" in capsys.readouterr().out
    for text, why in (("{}", "missing required"), ('{"format_version": 9}', "missing required")):
        file.write_text(text)
        assert main(check) == 2
        assert why in capsys.readouterr().err
    file.write_text(json.dumps({**msgspec.to_builtins(NEEDED), "format_version": 9}))
    assert main(check) == 2
    assert "update it" in capsys.readouterr().err
    file.write_text(json.dumps({**msgspec.to_builtins(NEEDED), "memory_bytes": -5}))
    assert main(check) == 2
    assert "memory_bytes is -5" in capsys.readouterr().err
    for data in (b"", b"[", b"null", b"\xff\xfe", b"[" * 100_000):
        file.write_bytes(data)
        assert main(check) == 2
        assert f"--requirement {file}: " in capsys.readouterr().err
    evil = {"store": f"{tmp_path}/\x1b[2J", "topology": "\x1b[31m"}
    file.write_text(json.dumps({**msgspec.to_builtins(NEEDED), **evil}))
    assert main(check) == 1
    assert "\x1b" not in capsys.readouterr().out
    for wrong in ("nan", "inf", "-3", "0"):
        assert main([*check, "--window", wrong]) == 2
        assert f"--window: {wrong} is not" in capsys.readouterr().err
    assert main(["requirement", "--requirement", str(file)]) == 2
