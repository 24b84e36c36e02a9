"""What is acknowledged survives a power loss: every byte, every name, every directory above."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint, OwnCheckpoint
from drainfsm.core.manifest import Commit, Entry, Manifest
from drainfsm.core.notice import Cause
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.durable import make_directory
from drainfsm.log.journal import Journal, journal_path
from drainfsm.store import PosixStore
from drainfsm.store.base import TEMPORARY_PREFIX
from drainfsm.store.commits import CommitLog
from drainfsm.store.generations import write_manifest
from drainfsm.store.requeues import write_requeue
from drainfsm.testing.scenario import Scenario
from drainfsm_kit.power import Disk
from drainfsm_kit.ranks import RecordedPort


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def history() -> list[Record]:
    return Scenario().saving().history


def test_the_witness_sees_what_was_not_synced(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert disk.lost(tmp_path) == ["file"]
    fd = os.open(tmp_path / "file", os.O_WRONLY)
    os.fsync(fd)
    assert disk.lost(tmp_path) == ["file"], "its name is not"
    directory = os.open(tmp_path, os.O_RDONLY)
    os.fsync(directory)
    assert disk.lost(tmp_path) == []
    os.write(fd, b"y")
    assert disk.lost(tmp_path) == ["file"], "its bytes are other ones"
    os.close(fd)
    os.close(directory)


# --- the journal --------------------------------------------------------------------------------


def test_a_journal_and_the_directories_above_it(tmp_path: Path, disk: Disk) -> None:
    path = journal_path(tmp_path / "state", job_id="job", epoch=1)
    journal = Journal.open(path, job_id="job", epoch=1)
    assert disk.lost(tmp_path) == []
    for record in history():
        journal.append(record)
        assert disk.lost(tmp_path) == []
    journal.close()


def test_a_journal_that_was_killed_in_the_middle(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last bytes may be in the page cache alone: they are facts once it is open again."""
    path = journal_path(tmp_path, job_id="job", epoch=1)
    first, second, *_ = history()
    with monkeypatch.context() as killed:
        killed.setattr(os, "fdatasync", lambda fd: None)
        killed.setattr(os, "fsync", lambda fd: None)
        journal = Journal.open(path, job_id="job", epoch=1)
        journal.append(first)
        os.close(os.dup(journal._fd))
        journal.close()
        with path.open("ab") as file:
            file.write(b"\x01torn")
    assert disk.lost(tmp_path) != []
    journal = Journal.open(path, job_id="job", epoch=1)
    assert (journal.records, journal.dropped_bytes) == ([first], 5)
    assert disk.lost(path.parent) == []
    journal.append(second)
    assert disk.lost(path.parent) == []
    journal.close()


# --- the store ----------------------------------------------------------------------------------


def made_store(tmp_path: Path) -> PosixStore:
    store = PosixStore(tmp_path / "store")
    store.create()
    return store


def test_what_the_store_is_told_to_keep(tmp_path: Path, disk: Disk) -> None:
    store = made_store(tmp_path)
    store.put_if_absent("a/b/once", b"1")
    assert disk.lost(tmp_path) == []
    store.put("a/c/often", b"1")
    store.put("a/c/often", b"2")
    assert disk.lost(tmp_path) == []
    store.create_tree("generations/g/")
    assert disk.lost(tmp_path) == []
    with store.writer("generations/g/file") as stream:
        stream.write(b"x" * 3_000_000)
    assert disk.lost(tmp_path) == []
    store.directory("generations/h/deep/er/")
    assert disk.lost(tmp_path) == []


def test_the_last_bytes_of_a_stream(tmp_path: Path, disk: Disk) -> None:
    """They are in its buffer until it ends."""
    store = made_store(tmp_path)
    store.create_tree("generations/g/")
    with store.writer("generations/g/file") as stream:
        stream.write(b"few")
    assert disk.lost(tmp_path) == []


def test_what_the_store_is_told_to_remove(tmp_path: Path, disk: Disk) -> None:
    store = made_store(tmp_path)
    for name in ("a/one", "a/other", "generations/g/file"):
        store.put_if_absent(name, b"1")
    (tmp_path / "store" / "a" / "one").unlink()
    assert disk.back(tmp_path) == ["store/a/one"], "the witness sees it"
    store.delete("a/other")
    store.delete_tree("generations/g/")
    assert disk.back(tmp_path) == []


def test_a_slot_without_hard_links(tmp_path: Path, disk: Disk) -> None:
    def cannot(source: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    store = PosixStore(tmp_path / "store", link=cannot)
    store.create()
    store.put_if_absent("a/b/once", b"1")
    assert disk.lost(tmp_path) == []


def test_claim_manifest_commit_and_requeue_record(tmp_path: Path, disk: Disk) -> None:
    store = made_store(tmp_path)
    log = CommitLog(store, job_id="job")
    log.claim(attempt_id="a", now_unix_ms=1)
    assert disk.lost(tmp_path) == []
    store.create_tree("generations/g/")
    manifest = Manifest(
        job_id="job",
        epoch=1,
        generation_id="g",
        step=1,
        world_size=1,
        entries=(Entry(name="x", size_bytes=1, checksum="sha256:00", rank=0),),
        created_unix_ms=1,
    )
    digest = write_manifest(store, manifest)
    assert disk.lost(tmp_path) == []
    log.publish(commit_of(digest))
    assert disk.lost(tmp_path) == []
    write_requeue(
        store,
        RequeueRecord(
            job_id="job",
            epoch=1,
            cause=Cause("finished"),
            generation_id="g",
            manifest_digest=digest,
            step=1,
            world_size=1,
            capacity=Capacity(node_count=1),
            recorded_unix_ms=1,
        ),
    )
    assert disk.lost(tmp_path) == []


def commit_of(digest: str) -> Commit:
    return Commit(
        job_id="job",
        epoch=1,
        attempt_id="a",
        generation_id="g",
        manifest_digest=digest,
        step=1,
        world_size=1,
        total_bytes=1,
        file_count=1,
        committed_unix_ms=1,
    )


def files_only(sync: Callable[[int], None]) -> Callable[[int], None]:
    """Names are given, and are not kept yet."""

    def synced(fd: int) -> None:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            sync(fd)

    return synced


def test_a_commit_and_a_claim_that_are_found_there(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names were given and not yet kept when the call before this one got no answer."""
    made_store(tmp_path)

    def log() -> CommitLog:
        return CommitLog(PosixStore(tmp_path / "store"), job_id="job")

    with monkeypatch.context() as hung:
        hung.setattr(os, "fsync", files_only(os.fsync))
        log().claim(attempt_id="a", now_unix_ms=1)
    log().claim(attempt_id="a", now_unix_ms=2)
    assert [name for name in disk.lost(tmp_path) if "commits" in name] == []
    with monkeypatch.context() as hung:
        hung.setattr(os, "fsync", files_only(os.fsync))
        log().publish(commit_of("sha256:00"))
    log().publish(commit_of("sha256:00"))
    assert [name for name in disk.lost(tmp_path) if "commits" in name] == []


# --- what a job writes itself -------------------------------------------------------------------


class WatchingPort(RecordedPort):
    """Looks at the disk whenever a rank reports its part durable. What is seen then is for the test
    to judge: an error here would be a failed save, no more."""

    def __init__(self, directory: Path, disk: Disk, **options: Any) -> None:
        super().__init__(directory, store_url=str(directory / "store"), **options)
        self.lost: list[list[str]] = []
        """Of what was reported durable, at each report."""

        self._disk, self._root = disk, directory / "store"

    def report_durable(self, *args: Any, **kwargs: Any) -> Any:
        began = f"{TEMPORARY_PREFIX}began-"
        self.lost.append([name for name in self._disk.lost(self._root) if began not in name])
        return super().report_durable(*args, **kwargs)


@pytest.mark.parametrize("named", [True, False])
def test_the_files_of_an_own_saver_and_all_directories_it_made(
    tmp_path: Path, disk: Disk, named: bool
) -> None:
    made_store(tmp_path)

    def save(directory: Path, step: int) -> list[str] | None:
        (directory / "a" / "b").mkdir(parents=True)
        (directory / "a" / "b" / "deep").write_bytes(os.urandom(2_000_000))
        (directory / "flat").write_bytes(b"x")
        return ["a/b/deep", "flat"] if named else None

    settings = CheckpointSettings(every_steps=2, asynchronous=False)
    port = WatchingPort(tmp_path, disk, settings=settings, drain_at=2)
    checkpoint = OwnCheckpoint(port, save=save, load=lambda directory, step: None)
    checkpoint.restore()
    for step in range(3):
        checkpoint.step_done(step)
    checkpoint.close()
    assert port.lost == [[], []]


# --- what torch writes --------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_files_that_torch_writes_and_their_metadata(
    tmp_path: Path, disk: Disk, asynchronous: bool
) -> None:
    made_store(tmp_path)
    settings = CheckpointSettings(every_steps=2, asynchronous=asynchronous)
    port = WatchingPort(tmp_path, disk, settings=settings, drain_at=2)
    model = nn.Linear(700, 700)
    checkpoint = Checkpoint(port, model=model, optimizer=torch.optim.AdamW(model.parameters()))
    checkpoint.restore()
    for step in range(3):
        checkpoint.step_done(step)
    checkpoint.close()
    assert port.lost == [[], []]


def test_directories_one_in_another(tmp_path: Path, disk: Disk) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    assert disk.lost(tmp_path) == []
