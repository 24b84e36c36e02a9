"""Verdicts by exact history, tombstones, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from drainfsm.checkpoint.gate import earlier
from drainfsm.cli.main import main
from drainfsm.core.manifest import Commit, Manifest
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RefusedGeneration, RequeueRecord
from drainfsm.core.state import generation_id
from drainfsm.errors import (
    CommitLogError,
    GenerationPrunedError,
    RestoreRefusedError,
    StoreUnreachableError,
)
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.gc import remove, survey
from drainfsm.store.generations import generation_prefix, read_manifest, write_manifest
from drainfsm.store.posix import PosixStore
from drainfsm.store.requeues import restore_for, write_requeue
from drainfsm.store.retention import Retention, plan, protected
from drainfsm.testing.stores import MemoryStore
from drainfsm_kit.ranks import RecordedPort

Output = pytest.CaptureFixture[str]
ALL = Retention()
LAST = Retention(keep_last=1)


def _claim(store: ObjectStore) -> int:
    log = CommitLog(store, job_id="job")
    return log.claim(attempt_id=f"a{log.head().epoch + 1}", now_unix_ms=1).epoch


def _write(store: ObjectStore, epoch: int, step: int) -> str:
    generation = generation_id(epoch=epoch, step=step, saver="p")
    store.put(generation_prefix(generation) + "rank0", b"12345")
    return generation


def _commit(store: ObjectStore, epoch: int, step: int) -> Commit:
    generation = _write(store, epoch, step)
    manifest = Manifest(
        job_id="job",
        epoch=epoch,
        generation_id=generation,
        step=step,
        world_size=1,
        entries=(),
        created_unix_ms=1,
    )
    commit = Commit(
        job_id="job",
        epoch=epoch,
        attempt_id=f"a{epoch}",
        generation_id=generation,
        manifest_digest=write_manifest(store, manifest),
        step=step,
        world_size=1,
        total_bytes=5,
        file_count=1,
        committed_unix_ms=1,
    )
    CommitLog(store, job_id="job").publish(commit)
    return commit


def _leave(store: ObjectStore, commit: Commit, *, epoch: int) -> None:
    record = RequeueRecord(
        job_id="job",
        epoch=epoch,
        cause=Cause("test"),
        generation_id=commit.generation_id,
        manifest_digest=commit.manifest_digest,
        step=commit.step,
        world_size=1,
        capacity=Capacity(node_count=1),
        recorded_unix_ms=1,
    )
    write_requeue(store, record)


def _removed(store: ObjectStore, retention: Retention) -> set[str]:
    verdicts = plan(survey(store, job_id="job"), retention)
    return {verdict.generation_id for verdict in verdicts if verdict.removes}


def _collect(store: ObjectStore, retention: Retention) -> None:
    verdicts = plan(survey(store, job_id="job"), retention)
    assert [r.error for r in remove(store, verdicts, now_unix_ms=lambda: 7) if r.error] == []


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_was_never_committed_goes_once_a_newer_attempt_has_claimed(store: MemoryStore) -> None:
    epoch = _claim(store)
    mine = _write(store, epoch, 1)
    assert _removed(store, LAST) == set()
    _leave(store, _commit(store, epoch, 2), epoch=epoch)
    assert _removed(store, LAST) == set(), "a late put may still commit it"
    _claim(store)
    assert _removed(store, ALL) == {mine}


def test_without_a_retention_policy_nothing_committed_goes(store: MemoryStore) -> None:
    for _ in range(3):
        epoch = _claim(store)
        for step in range(5):
            _leave_step = _commit(store, epoch, step)
        _leave(store, _leave_step, epoch=epoch)
    assert _removed(store, ALL) == set()


def test_keep_last_keeps_the_newest_commits(store: MemoryStore) -> None:
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(6)]
    _leave(store, commits[-1], epoch=epoch)
    names = [commit.generation_id for commit in commits]
    assert _removed(store, LAST) == set(names[:5])
    assert _removed(store, Retention(keep_last=4)) == set(names[:2])
    assert _removed(store, Retention(keep_last=99)) == set()


def test_keep_every_counts_commits_from_the_first_and_for_ever(store: MemoryStore) -> None:
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(7)]
    _leave(store, commits[-1], epoch=epoch)
    names = [commit.generation_id for commit in commits]
    every = Retention(keep_every=3)
    assert _removed(store, every) == {names[n] for n in (0, 1, 3, 4)}
    _collect(store, every)
    assert _removed(store, every) == set()
    assert survey(store, job_id="job").pruned == {names[n] for n in (0, 1, 3, 4)}


def test_a_live_attempt_may_still_name_its_three_newest_commits(store: MemoryStore) -> None:
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(5)]
    names = [commit.generation_id for commit in commits]
    assert _removed(store, LAST) == set(names[:2])


def test_what_a_record_names_stays_though_a_newer_commit_exists(store: MemoryStore) -> None:
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(5)]
    _leave(store, commits[1], epoch=epoch)
    names = [commit.generation_id for commit in commits]
    assert _removed(store, LAST) == {names[0], names[2], names[3]}
    _claim(store)
    assert names[1] not in _removed(store, LAST), "the live attempt restores it"


def test_what_an_attempt_restored_stays_while_it_has_committed_nothing(store: MemoryStore) -> None:
    first = _claim(store)
    commits = [_commit(store, first, step) for step in range(5)]
    _leave(store, commits[0], epoch=first)
    second = _claim(store)
    _collect(store, LAST)
    _leave(store, commits[0], epoch=second)
    log = CommitLog(store, job_id="job")
    claimed = log.claim(attempt_id="a3", now_unix_ms=1)
    record = restore_for(store, log, claimed, now_unix_ms=1, node_count=1)
    assert record is not None
    assert record.generation_id == commits[0].generation_id


def test_what_a_restart_may_fall_back_to_stays_as_deep_as_keep_last(store: MemoryStore) -> None:
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(8)]
    _leave(store, commits[4], epoch=epoch)
    names = [commit.generation_id for commit in commits]
    kept = set(names) - _removed(store, Retention(keep_last=2))
    assert kept == {names[3], names[4], names[6], names[7]}


def test_a_fallback_passes_over_what_was_pruned(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "store")
    store.create()
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(6)]
    _leave(store, commits[-1], epoch=epoch)
    _collect(store, Retention(keep_last=1, keep_every=2))  # the 2nd, the 4th and the 6th
    port = RecordedPort(tmp_path, store_url=store.url)
    refused = [RefusedGeneration(generation_id=commits[-1].generation_id, reason="damaged")]
    assert earlier(port, store, refused) == commits[3].generation_id


def test_names_that_are_not_ours_are_not_touched(store: MemoryStore) -> None:
    for name in ("mine", "e1-s1-p", "e000001-s000000000001-p.bak", "..e000001-s1-p"):
        store.put(f"generations/{name}/file", b"x")
    store.put("generations/loose", b"x")
    _claim(store)
    _claim(store)
    assert _removed(store, LAST) == set()


def test_a_pruned_generation_leaves_a_tombstone_and_a_clear_refusal(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(3)]
    _leave(store, commits[-1], epoch=epoch)
    _collect(store, LAST)
    gone = commits[0]
    assert list(store.list(generation_prefix(gone.generation_id))) == ["pruned.json"]
    with pytest.raises(GenerationPrunedError, match="pruned by `drainfsm gc`"):
        read_manifest(store, generation_id=gone.generation_id, digest=gone.manifest_digest)
    assert issubclass(GenerationPrunedError, RestoreRefusedError)
    found = CommitLog(store, job_id="job").find(gone.generation_id)
    assert found is not None, "its slot stays"


class _Breaks(MemoryStore):
    """Goes away after so many deletions."""

    deletes_left = 10**6

    def delete(self, name: str) -> None:
        if self.deletes_left == 0:
            raise StoreUnreachableError("away")
        self.deletes_left -= 1
        super().delete(name)


class Watched(MemoryStore):
    """Calls ``before`` with the name of every method and what it is about."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str, str], None] = lambda method, name: None

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        self.before("names", prefix)
        return super().names(prefix, after=after)

    def put_if_absent(self, name: str, data: bytes) -> None:
        self.before("put", name)
        super().put_if_absent(name, data)

    def delete(self, name: str) -> None:
        self.before("delete", name)
        super().delete(name)


def test_of_a_pruned_generation_the_manifest_goes_first_behind_the_tombstone() -> None:
    """Killed anywhere in between it is refused as a whole, and never restored in part."""
    store = Watched()
    _claim(store)
    pruned = _commit(store, 1, 1).generation_id
    _leave(store, _commit(store, 1, 2), epoch=1)
    seen: list[tuple[str, str]] = []
    store.before = lambda method, name: seen.append((method, name.rpartition("/")[2]))
    verdicts = plan(survey(store, job_id="job"), LAST)
    seen.clear()
    removed = list(remove(store, verdicts, now_unix_ms=lambda: 1))
    assert [one.verdict.generation_id for one in removed] == [pruned]
    assert seen == [("put", "pruned.json"), ("delete", "manifest.json"), ("delete", "rank0")]


@pytest.mark.parametrize("listing", range(1, 7))
def test_what_is_committed_and_then_fenced_while_the_store_is_read_stays(listing: int) -> None:
    """Between two reads of a clean-up the first attempt commits, and the next one claims: the
    newest claim must not be older than what is known of the commits."""
    store = Watched()
    _claim(store)
    _commit(store, 1, 1)
    listings: list[str] = []

    def happens(method: str, name: str) -> None:
        if (method, name) != ("names", "commits/"):
            return
        listings.append(name)
        if len(listings) == listing:
            _commit(store, 1, 2)
            _claim(store)

    store.before = happens
    holding = survey(store, job_id="job")
    store.before = lambda method, name: None
    kept = generation_id(epoch=1, step=2, saver="p")
    assert [v for v in plan(holding, ALL) if v.removes and v.generation_id == kept] == []


def test_a_removal_that_fails_is_told_and_finished_by_the_next_run() -> None:
    store = _Breaks()
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(3)]
    _leave(store, commits[-1], epoch=epoch)
    store.deletes_left = 1  # the first manifest, and not its files
    verdicts = plan(survey(store, job_id="job"), LAST)
    assert [bool(r.error) for r in remove(store, verdicts, now_unix_ms=lambda: 7)] == [True, True]
    store.deletes_left = 10**6
    assert _removed(store, ALL) == {c.generation_id for c in commits[:2]}, "begun, so finished"
    _collect(store, ALL)
    assert sorted(store.list("generations/")) == [
        f"{commits[0].generation_id}/pruned.json",
        f"{commits[1].generation_id}/pruned.json",
        f"{commits[2].generation_id}/manifest.json",
        f"{commits[2].generation_id}/rank0",
    ]


def test_a_commit_log_with_a_hole_ends_the_clean_up(store: MemoryStore) -> None:
    epoch = _claim(store)
    for step in range(3):
        _commit(store, epoch, step)
    store.delete("commits/00000002.json")
    with pytest.raises(CommitLogError):
        survey(store, job_id="job")


def test_the_command_is_a_dry_run_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    store = PosixStore(tmp_path / "store")
    store.create()
    epoch = _claim(store)
    commits = [_commit(store, epoch, step) for step in range(3)]
    _leave(store, commits[-1], epoch=epoch)
    before = store.list("")
    command = ["gc", "--store", str(tmp_path / "store"), "--job", "job", "--keep-last", "1"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.count("would go") == 2
    assert "a dry run" in printed.err
    assert store.list("") == before
    assert main([*command, "--delete", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(one["verdict"]["removes"] for one in told) == 2
    assert len(store.list("generations/")) == 4
    assert main(command) == 0
    assert "kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--job", "job"], "--store is missing"),
        (["--store", "store"], "--job is missing"),
        (["--store", "store", "--job", "job", "--keep-last", "0"], "0 is not at least 1"),
        (["--store", "store", "--job", "job", "--keep-every", "x"], "argument --keep-every"),
        (["--store", "nowhere", "--job", "job"], "never claimed it"),
    ],
)
def test_a_wrong_call_removes_nothing(
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gc", *argv]) == 2
    assert message in capsys.readouterr().err


def test_the_newest_commit_is_kept_also_where_the_record_names_an_older_one(
    store: MemoryStore,
) -> None:
    """An attempt that then leaves no record is restored from it."""
    epoch = _claim(store)
    named, newest = _commit(store, epoch, 1), _commit(store, epoch, 2)
    _leave(store, named, epoch=epoch)
    kept = protected(survey(store, job_id="job"), depth=1)
    assert kept.keys() == {named.generation_id, newest.generation_id}
