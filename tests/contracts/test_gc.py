"""Clean-up removes the same, and leaves the same, in every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.core.manifest import Commit, Manifest
from drainfsm.core.state import generation_id
from drainfsm.errors import GenerationPrunedError
from drainfsm.store import CommitLog, ObjectStore, open_store
from drainfsm.store.gc import remove, survey
from drainfsm.store.generations import generation_prefix, read_manifest, write_manifest
from drainfsm.store.retention import Retention, plan
from drainfsm.testing.stores import MemoryStore
from drainfsm_kit.s3 import BUCKET

STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": lambda _: MemoryStore(),
    "posix": lambda path: open_store(str(path)),
    "s3": lambda path: open_store(f"s3://{BUCKET}/{path.name}"),
    "s3_files": lambda path: open_store(f"s3://{BUCKET}/{path.name}"),
}
LAST = Retention(keep_last=1)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param.startswith("s3"):
        request.getfixturevalue(request.param)
    return STORES[request.param](tmp_path)


def _write(store: ObjectStore, epoch: int, step: int) -> str:
    generation = generation_id(epoch=epoch, step=step, saver="p")
    prefix = generation_prefix(generation)
    store.create_tree(prefix)
    for name in ("rank0", "part/rank1"):
        store.put(prefix + name, b"12345")
    return generation


def _commit(store: ObjectStore, log: CommitLog, step: int) -> Commit:
    generation = _write(store, 1, step)
    manifest = Manifest(
        job_id="job",
        epoch=1,
        generation_id=generation,
        step=step,
        world_size=2,
        entries=(),
        created_unix_ms=1,
    )
    commit = Commit(
        job_id="job",
        epoch=1,
        attempt_id="a",
        generation_id=generation,
        manifest_digest=write_manifest(store, manifest),
        step=step,
        world_size=2,
        total_bytes=10,
        file_count=2,
        committed_unix_ms=1,
    )
    log.publish(commit)
    return commit


def test_a_clean_up_leaves_tombstones_and_what_is_kept(store: ObjectStore) -> None:
    log = CommitLog(store, job_id="job")
    log.claim(attempt_id="a", now_unix_ms=1)
    commits = [_commit(store, log, step) for step in range(6)]
    orphan = _write(store, 1, 9)
    CommitLog(store, job_id="job").claim(attempt_id="b", now_unix_ms=2)
    verdicts = plan(survey(store, job_id="job"), LAST)
    gone = {verdict.generation_id for verdict in verdicts if verdict.removes}
    pruned = {commit.generation_id for commit in commits[:3]}
    assert gone == {orphan} | pruned
    assert [done.error for done in remove(store, verdicts, now_unix_ms=lambda: 1)] == [""] * 4
    left = store.list("generations/")
    for commit in commits[:3]:
        files = [name for name in left if name.startswith(commit.generation_id)]
        assert files == [f"{commit.generation_id}/pruned.json"]
        with pytest.raises(GenerationPrunedError):
            read_manifest(store, generation_id=commit.generation_id, digest=commit.manifest_digest)
    for commit in commits[3:]:
        assert len([name for name in left if name.startswith(commit.generation_id)]) == 3
        read_manifest(store, generation_id=commit.generation_id, digest=commit.manifest_digest)
    assert not any(name.startswith(orphan) for name in left)
    assert [commit for _, commit in CommitLog(store, job_id="job").commits()] == commits
    again = plan(survey(store, job_id="job"), LAST)
    assert not any(verdict.removes for verdict in again)
