"""A job that writes its checkpoints itself: its files are hashed, made durable and committed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drainfsm.checkpoint import OwnCheckpoint
from drainfsm.checkpoint.own_files import make_durable
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.errors import (
    ConfigError,
    ManifestMismatchError,
    RestoreRefusedError,
)
from drainfsm.store.checksums import checksum_of
from drainfsm.store.generations import MANIFEST
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, Report, commit_saved

PERIODIC = generation_id(epoch=1, step=1, saver="p")
DRAIN = generation_id(epoch=1, step=2, saver="d1")


class Job:
    """Its whole state is a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.loaded_step = -1

    def save(self, directory: Path, step: int) -> None:
        (directory / "deep").mkdir()
        (directory / "deep" / "text").write_text(self.text)
        (directory / "step").write_text(str(step))

    def load(self, directory: Path, step: int) -> None:
        self.text = (directory / "deep" / "text").read_text()
        self.loaded_step = int((directory / "step").read_text())


def port_in(tmp_path: Path, **options: Any) -> RecordedPort:
    settings = CheckpointSettings(**options.pop("settings", {}))
    return RecordedPort(tmp_path, store_url=str(tmp_path / "store"), settings=settings, **options)


def saved(
    tmp_path: Path, *, world_size: int = 1, save: Callable[..., Any] | None = None, **options: Any
) -> list[Report]:
    """Three steps: a periodic save after step 1 and a drain's after step 2. What was reported."""
    reports = []
    for rank in range(world_size):
        job = Job(f"rank {rank}")
        port = port_in(
            tmp_path,
            rank=rank,
            world_size=world_size,
            drain_at=2,
            settings={"every_steps": 2, "asynchronous": False},
        )
        checkpoint = OwnCheckpoint(port, save=save or job.save, load=job.load, **options)
        assert checkpoint.restore() == 0
        assert [checkpoint.step_done(step) for step in range(3)] == [False, False, True]
        checkpoint.close()
        reports += port.reports
    return reports


def committed(tmp_path: Path, *, generation: str = DRAIN, world_size: int = 1) -> RestoreTarget:
    store = new_store(tmp_path / "store")
    step = 2 if generation == DRAIN else 1
    return commit_saved(store, tmp_path, generation=generation, step=step, world_size=world_size)


def restored(tmp_path: Path, target: RestoreTarget, *, rank: int = 0, **options: Any) -> Job:
    settings = {"verify": options.pop("verify", "sizes")}
    port = port_in(
        tmp_path,
        rank=rank,
        world_size=target.world_size,
        restore_target=target,
        settings=settings,
    )
    job = Job("nothing")
    hooks = {"save": job.save, "load": job.load} | options
    assert OwnCheckpoint(port, **hooks).restore() == target.step + 1
    assert [report.reason for report in port.of("restored")] == [settings["verify"]]
    return job


@pytest.mark.parametrize("verify", ["sizes", "checksums"])
def test_every_rank_gets_back_what_it_wrote(tmp_path: Path, verify: str) -> None:
    reports = saved(tmp_path, world_size=2)
    for generation in (PERIODIC, DRAIN):
        kinds = [r.kind for r in reports if r.generation_id == generation and r.rank == 1]
        assert kinds == ["began", "staged", "durable"][1 if generation == DRAIN else 0 :]
        target = committed(tmp_path, generation=generation, world_size=2)
        for rank in range(2):
            job = restored(tmp_path, target, rank=rank, verify=verify)
            assert (job.text, job.loaded_step) == (f"rank {rank}", target.step)


def test_the_files_are_listed_with_the_hash_of_what_is_in_them(tmp_path: Path) -> None:
    reports = saved(tmp_path, save=lambda directory, step: save_one(directory, b"x" * 9_999_999))
    (durable,) = [r for r in reports if r.kind == "durable" and r.generation_id == DRAIN]
    (entry,) = durable.entries
    assert (entry.name, entry.size_bytes) == ("rank00000/one", 9_999_999)
    assert entry.checksum.startswith("xxh3_128:")
    assert durable.saver == "own"


def save_one(directory: Path, data: bytes) -> None:
    (directory / "one").write_bytes(data)


def shared(rank: int) -> Callable[[Path, int], list[str]]:
    def save(directory: Path, step: int) -> list[str]:
        (directory / f"part{rank}").write_text(f"rank {rank}")
        return [f"part{rank}"]

    return save


def test_ranks_may_share_a_directory_and_say_which_files_are_theirs(tmp_path: Path) -> None:
    for rank in range(2):
        port = port_in(tmp_path, rank=rank, world_size=2, drain_at=2)
        checkpoint = OwnCheckpoint(port, save=shared(rank), load=Job("").load, shared=True)
        assert checkpoint.step_done(2)
    target = committed(tmp_path, world_size=2)
    seen: list[list[str]] = []

    def load(directory: Path, step: int) -> None:
        seen.append(sorted(path.name for path in directory.glob("part*")))

    restored(tmp_path, target, rank=1, load=load, shared=True, verify="checksums")
    assert seen == [["part0", "part1"]]
    with pytest.raises(RestoreRefusedError, match=r"says saver own \(shared\), not own"):
        restored(tmp_path, target)


def test_checksums_that_the_saver_knows_are_taken_and_checked_at_restore(tmp_path: Path) -> None:
    def save(directory: Path, step: int) -> dict[str, str]:
        save_one(directory, b"bytes")
        digest = hashlib.sha256(b"bytes" if step == 1 else b"others").hexdigest()
        return {"one": f"sha256:{digest}"}

    def load(directory: Path, step: int) -> None:
        assert (directory / "one").read_bytes() == b"bytes"

    saved(tmp_path, save=save)
    right = committed(tmp_path, generation=PERIODIC)
    restored(tmp_path, right, load=load, verify="checksums")
    wrong = committed(tmp_path, generation=DRAIN)
    with pytest.raises(ManifestMismatchError, match="rank00000/one has checksum"):
        restored(tmp_path, wrong, load=load, verify="checksums")


def link(directory: Path, step: int) -> None:
    (directory / "link").symlink_to("/etc/hostname")


def pipe(directory: Path, step: int) -> None:
    os.mkfifo(directory / "pipe")


def fails(directory: Path, step: int) -> None:
    raise OSError(28, "No space left on device")


def save_named(directory: Path, name: str) -> list[str]:
    (directory / name).write_bytes(b"")
    return [name]


def with_md5(directory: Path, step: int) -> dict[str, str]:
    save_one(directory, b"")
    return {"one": "md5:00"}


REFUSED: list[tuple[Callable[[Path, int], object], str]] = [
    (fails, "OSError: .*No space left on device"),
    (link, "is a symbolic link"),
    (pipe, "is not a file"),
    (lambda directory, step: ["absent"], "absent is not a file"),
    (lambda directory, step: ["../out"], "not a relative path"),
    (with_md5, "checksum 'md5:00'"),
    (lambda directory, step: save_named(directory, MANIFEST), "this name is taken"),
]


@pytest.mark.parametrize(("save", "says"), REFUSED, ids=lambda value: str(value)[:12])
def test_what_cannot_be_committed_fails_the_save_and_not_the_training(
    tmp_path: Path, save: Callable[[Path, int], object], says: str
) -> None:
    reports = saved(tmp_path, save=save)
    failed = [report for report in reports if report.kind == "failed"]
    assert [report.generation_id for report in failed] == [PERIODIC, DRAIN]
    assert all(re.search(says, report.reason) for report in failed), failed
    assert not [report for report in reports if report.kind == "durable"]


@pytest.mark.parametrize("returned", [7, True, "one", Path("one")])
def test_a_directory_of_its_own_is_saved_whatever_save_returns(
    tmp_path: Path, returned: object
) -> None:
    """``save=lambda directory, step: (directory / "step").write_text(…)`` returns a number."""

    def save(directory: Path, step: int) -> object:
        save_one(directory, b"one")
        return returned

    durable = [report for report in saved(tmp_path, save=save) if report.kind == "durable"]
    assert [len(report.entries) for report in durable] == [1, 1]
    (tmp_path / "shared").mkdir()
    shared = saved(tmp_path / "shared", save=save, shared=True)
    failed = [report.reason for report in shared if report.kind == "failed"]
    assert len(failed) == 2
    assert "return a list of names" in failed[0]


def test_a_generation_is_written_once_even_if_the_ranks_are_restarted(tmp_path: Path) -> None:
    saved(tmp_path)
    again = saved(tmp_path)
    failed = [report for report in again if report.kind == "failed"]
    assert len(failed) == 2
    assert "a generation is written once" in failed[0].reason


def test_a_save_that_was_given_up_reports_nothing_durable(tmp_path: Path) -> None:
    port = port_in(tmp_path, drain_at=2)
    port.aborted.add(DRAIN)
    checkpoint = OwnCheckpoint(port, save=Job("x").save, load=Job("").load)
    assert checkpoint.step_done(2)
    assert [report.reason for report in port.of("failed")] == ["the save was given up"]
    assert port.of("durable") == []


@pytest.mark.parametrize("done", [1, 3])
def test_a_rank_that_is_not_at_the_ordered_step_saves_nothing(tmp_path: Path, done: int) -> None:
    port = OrderedPort(tmp_path, store_url=str(tmp_path / "store"), drain_at=2)
    checkpoint = OwnCheckpoint(port, save=Job("x").save, load=Job("").load)
    assert checkpoint.step_done(done)
    assert [report.reason for report in port.of("failed")] == [f"rank 0 is at step {done}, not 2"]
    assert port.of("durable") == []


class OrderedPort(RecordedPort):
    """Orders the save of the stop step, whichever step the rank is at."""

    def step_done(self, step: int) -> bool:
        return super().step_done(2)


class GivenUpPort(RecordedPort):
    """Gives the drain's save up once its files are hashed."""

    hashed = False

    def save_aborted(self, generation_id: str) -> bool:
        return self.hashed and generation_id == DRAIN


def test_a_save_that_is_given_up_at_its_very_end_is_not_reported_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = GivenUpPort(tmp_path, store_url=str(tmp_path / "store"), drain_at=2)

    def hashed(*given: Any, **named: Any) -> Any:
        entries = make_durable(*given, **named)
        port.hashed = True
        return entries

    monkeypatch.setattr("drainfsm.checkpoint.own.make_durable", hashed)
    checkpoint = OwnCheckpoint(port, save=Job("x").save, load=Job("").load)
    assert checkpoint.step_done(2)
    assert [report.reason for report in port.of("failed")] == ["the save was given up"]
    assert port.of("durable") == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_save_behind_one_that_is_stuck_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Its files are still being read: nothing else may be begun beside it. Where ranks share a
    directory the job is asked to write nevertheless, or the others would wait for this rank."""
    stuck, go_on = threading.Event(), threading.Event()

    def hangs(*given: Any, **named: Any) -> list[Any]:
        stuck.set()
        assert go_on.wait(60)
        return []

    monkeypatch.setattr("drainfsm.checkpoint.own.make_durable", hangs)
    monkeypatch.setattr("drainfsm.checkpoint.waiting.GIVE_UP_S", 0.0)
    port = port_in(tmp_path, drain_at=2, settings={"every_steps": 2, "asynchronous": True})
    written = []

    def save(directory: Path, step: int) -> list[str]:
        written.append(step)
        (directory / f"file{step}").write_text("x")
        return [f"file{step}"]

    checkpoint = OwnCheckpoint(port, save=save, load=Job("").load, shared=shared)
    assert not checkpoint.step_done(1)
    assert stuck.wait(60)
    port.aborted.add(PERIODIC)
    assert checkpoint.step_done(2)
    reasons = [report.reason for report in port.of("failed") if report.generation_id == DRAIN]
    go_on.set()
    checkpoint.close()
    assert reasons == ["the save before was given up and is still stuck"]
    assert written == ([1, 2] if shared else [1])


def test_in_a_shared_directory_names_are_needed(tmp_path: Path) -> None:
    port = port_in(tmp_path, drain_at=2)
    checkpoint = OwnCheckpoint(port, save=Job("x").save, load=Job("").load, shared=True)
    assert checkpoint.step_done(2)
    assert "returned no names" in port.of("failed")[0].reason


def test_only_as_many_ranks_read_their_directories_again(tmp_path: Path) -> None:
    saved(tmp_path, world_size=2)
    target = committed(tmp_path, world_size=2)
    port = port_in(tmp_path, world_size=3, restore_target=target, settings={"reshard": True})
    with pytest.raises(RestoreRefusedError, match="a directory for each of its 2 ranks"):
        OwnCheckpoint(port, save=Job("").save, load=Job("").load).restore()


def test_where_ranks_may_fall_back_each_of_them_verifies_everything(tmp_path: Path) -> None:
    """They do not talk to each other, and must find the same."""
    saved(tmp_path, world_size=2)
    target = committed(tmp_path, world_size=2)
    other = tmp_path / "store" / "generations" / DRAIN / "rank00001" / "deep" / "text"
    other.write_text("rank 7")
    for on_refused, restores in (("fail", True), ("fallback", False)):
        port = port_in(
            tmp_path,
            world_size=2,
            restore_target=target,
            settings={"verify": "checksums", "on_refused": on_refused},
        )
        checkpoint = OwnCheckpoint(port, save=Job("").save, load=Job("").load)
        if restores:
            assert checkpoint.restore() == 3
        else:
            with pytest.raises(RestoreRefusedError, match="deep/text has checksum"):
                checkpoint.restore()


def test_a_file_that_is_still_being_written_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(stream: Any, *, algorithm: str) -> str:
        found = checksum_of(stream, algorithm=algorithm)
        with (tmp_path / "store" / "generations" / DRAIN / "rank00000" / "step").open("a") as file:
            file.write("more")
        return found

    monkeypatch.setattr("drainfsm.checkpoint.own_files.checksum_of", meanwhile)
    port = port_in(tmp_path, drain_at=2)
    assert OwnCheckpoint(port, save=Job("x").save, load=Job("").load).step_done(2)
    assert "is still being written" in port.of("failed")[0].reason


def test_what_changed_since_the_commit_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    target = committed(tmp_path)
    text = tmp_path / "store" / "generations" / DRAIN / "rank00000" / "deep" / "text"
    text.write_text("rank 7")
    assert restored(tmp_path, target).text == "rank 7", "sizes alone do not tell"
    with pytest.raises(ManifestMismatchError, match="deep/text has checksum"):
        restored(tmp_path, target, verify="checksums")
    text.unlink()
    with pytest.raises(ManifestMismatchError, match="deep/text is missing"):
        restored(tmp_path, target)


def test_what_load_raises_is_a_refusal(tmp_path: Path) -> None:
    saved(tmp_path)

    def load(directory: Path, step: int) -> None:
        raise KeyError("weights")

    with pytest.raises(RestoreRefusedError, match=r"load\(\) of .* failed: KeyError"):
        restored(tmp_path, committed(tmp_path), load=load)


def test_what_cannot_work_is_said_before_training(tmp_path: Path) -> None:
    hooks: dict[str, Any] = {"save": Job("").save, "load": Job("").load}
    bucket = RecordedPort(tmp_path, store_url="s3://bucket/x")
    with pytest.raises(ConfigError, match=r"choose a store on a file system"):
        OwnCheckpoint(bucket, **hooks)
    with pytest.raises(ConfigError, match="set every_steps"):
        OwnCheckpoint(port_in(tmp_path, settings={"every_s": 5}), **hooks)
    with pytest.raises(ConfigError, match="another name"):
        OwnCheckpoint(port_in(tmp_path), saver="torch.distributed.checkpoint", **hooks)


def test_no_torch_is_imported() -> None:
    code = "import sys, drainfsm.checkpoint.own; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
