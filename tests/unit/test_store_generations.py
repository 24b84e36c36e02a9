"""Manifests, verification, requeue records: what a restart trusts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from drainfsm.core.manifest import Commit, Entry, Manifest
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.errors import (
    CommitLogError,
    ConfigError,
    ManifestMismatchError,
    RestoreRefusedError,
)
from drainfsm.store.checksums import new_hasher
from drainfsm.store.commits import CommitLog
from drainfsm.store.generations import (
    generation_prefix,
    read_manifest,
    verify_generation,
    write_manifest,
)
from drainfsm.store.posix import PosixStore
from drainfsm.store.requeues import read_requeue, restore_for, write_requeue
from drainfsm.testing.stores import AmbiguousStore, MemoryStore, PutAnswer

GENERATION = "e000001-s000000000010-p"
FILES = {"__0_0.distcp": b"a" * 5000, "__1_0.distcp": b"b" * 7000, ".metadata": b"meta"}


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    store = PosixStore(tmp_path / "store")
    store.create()
    return store


def checksum(data: bytes, algorithm: str) -> str:
    hasher = new_hasher(algorithm)
    hasher.update(memoryview(data))
    return f"{algorithm}:{hasher.hexdigest()}"


def generation(store: PosixStore, *, algorithm: str = "xxh3_128") -> Manifest:
    store.create_tree(generation_prefix(GENERATION))
    for name, data in FILES.items():
        with store.writer(generation_prefix(GENERATION) + name) as stream:
            stream.write(data)
    return Manifest(
        job_id="job",
        epoch=1,
        generation_id=GENERATION,
        step=10,
        world_size=2,
        layout={"dp": 2},
        entries=tuple(
            Entry(name=n, size_bytes=len(d), checksum=checksum(d, algorithm), rank=0)
            for n, d in FILES.items()
        ),
        created_unix_ms=1,
    )


def path_of(store: PosixStore, name: str) -> Path:
    return store.root / generation_prefix(GENERATION) / name


def commit_of(manifest: Manifest, digest: str) -> Commit:
    return Commit(
        job_id="job",
        epoch=1,
        attempt_id="a",
        generation_id=manifest.generation_id,
        manifest_digest=digest,
        step=manifest.step,
        world_size=manifest.world_size,
        total_bytes=manifest.total_bytes,
        file_count=len(manifest.entries),
        committed_unix_ms=2,
    )


def test_the_digest_is_of_the_bytes_as_stored(store: PosixStore) -> None:
    manifest = generation(store)
    digest = write_manifest(store, manifest)
    assert (
        digest
        == f"sha256:{hashlib.sha256(path_of(store, 'manifest.json').read_bytes()).hexdigest()}"
    )
    assert write_manifest(store, manifest) == digest
    assert read_manifest(store, generation_id=GENERATION, digest=digest) == manifest


def test_a_generation_has_one_manifest(store: PosixStore) -> None:
    manifest = generation(store)
    write_manifest(store, manifest)
    with pytest.raises(ManifestMismatchError, match="other content"):
        write_manifest(store, msgspec.structs.replace(manifest, step=11))


def test_a_manifest_that_was_changed_is_refused(store: PosixStore) -> None:
    digest = write_manifest(store, generation(store))
    path = path_of(store, "manifest.json")
    path.write_bytes(path.read_bytes().replace(b"5000", b"5001"))
    with pytest.raises(ManifestMismatchError, match="it was changed"):
        read_manifest(store, generation_id=GENERATION, digest=digest)
    path.unlink()
    with pytest.raises(ManifestMismatchError, match="is missing"):
        read_manifest(store, generation_id=GENERATION, digest=digest)


def test_a_manifest_of_a_newer_format_is_refused_as_such(store: PosixStore) -> None:
    digest = write_manifest(store, msgspec.structs.replace(generation(store), format_version=2))
    with pytest.raises(ManifestMismatchError, match=r"format version 2.*reads up to 1"):
        read_manifest(store, generation_id=GENERATION, digest=digest)


@pytest.mark.parametrize("algorithm", ["xxh3_128", "sha256"])
def test_a_whole_generation_verifies(store: PosixStore, algorithm: str) -> None:
    manifest = generation(store, algorithm=algorithm)
    verify_generation(store, manifest, checksums=True)
    write_manifest(store, manifest)
    verify_generation(store, manifest, checksums=True)


def test_sizes_find_what_is_missing_extra_or_truncated(store: PosixStore) -> None:
    manifest = generation(store)
    extra = path_of(store, "__2_0.distcp")
    extra.write_bytes(b"x")
    with pytest.raises(ManifestMismatchError, match=r"unexpected file\(s\) __2_0\.distcp"):
        verify_generation(store, manifest, checksums=False)
    extra.unlink()
    path_of(store, "__1_0.distcp").write_bytes(b"b" * 6999)
    with pytest.raises(ManifestMismatchError, match=r"__1_0\.distcp has 6999 bytes, not 7000"):
        verify_generation(store, manifest, checksums=False)
    path_of(store, "__1_0.distcp").unlink()
    with pytest.raises(ManifestMismatchError, match=r"__1_0\.distcp is missing"):
        verify_generation(store, manifest, checksums=False)


@pytest.mark.parametrize("algorithm", ["xxh3_128", "sha256"])
def test_only_checksums_find_a_flipped_bit(store: PosixStore, algorithm: str) -> None:
    manifest = generation(store, algorithm=algorithm)
    path = path_of(store, "__1_0.distcp")
    data = bytearray(path.read_bytes())
    data[6500] ^= 1
    path.write_bytes(data)
    verify_generation(store, manifest, checksums=False)
    with pytest.raises(ManifestMismatchError, match=rf"__1_0\.distcp has checksum {algorithm}:"):
        verify_generation(store, manifest, checksums=True)


def test_an_unknown_checksum_is_refused(store: PosixStore) -> None:
    with pytest.raises(ConfigError, match="'md5': choose xxh3_128, sha256 or sha256_tree"):
        new_hasher("md5")


def record(epoch: int = 1, **changes: object) -> RequeueRecord:
    base = RequeueRecord(
        job_id="job",
        epoch=epoch,
        cause=Cause("spot"),
        generation_id=None,
        manifest_digest=None,
        step=None,
        world_size=2,
        capacity=Capacity(node_count=1, accelerator_count=2),
        recorded_unix_ms=3,
    )
    return msgspec.structs.replace(base, **changes)


def test_an_attempt_leaves_one_requeue_record(store: PosixStore) -> None:
    assert read_requeue(store, epoch=1) is None
    write_requeue(store, record())
    write_requeue(store, record())
    assert read_requeue(store, epoch=1) == record()
    with pytest.raises(CommitLogError, match=r"requeue/000001\.json is there already"):
        write_requeue(store, record(cause="other"))


def test_a_requeue_record_that_is_garbled_or_misplaced_is_named(store: PosixStore) -> None:
    store.put("requeue/000001.json", b"{")
    with pytest.raises(CommitLogError, match=r"requeue/000001\.json is garbled"):
        read_requeue(store, epoch=1)
    write_requeue(store, record(2))
    store.put("requeue/000003.json", store.get("requeue/000002.json") or b"")
    with pytest.raises(CommitLogError, match="is of epoch 2"):
        read_requeue(store, epoch=3)


def claim_and_restore(store: PosixStore, attempt_id: str) -> RequeueRecord | None:
    log = CommitLog(store, job_id="job")
    claimed = log.claim(attempt_id=attempt_id, now_unix_ms=1)
    return restore_for(store, log, claimed, now_unix_ms=5, node_count=3)


def test_a_fresh_job_restores_nothing(store: PosixStore) -> None:
    assert claim_and_restore(store, "a") is None


def test_the_record_of_the_attempt_before_is_what_counts(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    manifest = generation(store)
    digest = write_manifest(store, manifest)
    CommitLog(store, job_id="job").publish(commit_of(manifest, digest))
    left = record(generation_id=GENERATION, manifest_digest=digest, step=10)
    write_requeue(store, left)
    assert claim_and_restore(store, "b") == left


def test_a_lost_attempt_is_restored_from_its_newest_commit(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    manifest = generation(store)
    digest = write_manifest(store, manifest)
    CommitLog(store, job_id="job").publish(commit_of(manifest, digest))
    derived = claim_and_restore(store, "b")
    assert derived is not None
    assert (derived.cause, derived.epoch, derived.resume_step) == ("lost", 1, 11)
    assert (derived.generation_id, derived.manifest_digest) == (GENERATION, digest)
    assert (derived.world_size, derived.layout) == (2, {"dp": 2})
    assert derived.capacity.node_count == 3
    assert read_requeue(store, epoch=1) == derived, "written in the lost attempt's place"
    again = claim_and_restore(store, "c")
    assert again is not None
    assert (again.epoch, again.generation_id) == (2, GENERATION)


def test_attempts_lost_before_any_commit_start_afresh(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    derived = claim_and_restore(store, "b")
    assert derived is not None
    assert (derived.cause, derived.generation_id, derived.resume_step) == ("lost", None, 0)


def test_a_record_that_names_what_no_commit_names_is_refused(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    write_requeue(store, record(generation_id=GENERATION, manifest_digest="sha256:0", step=10))
    with pytest.raises(RestoreRefusedError, match="which no commit names"):
        claim_and_restore(store, "b")


def test_a_record_that_disagrees_with_its_commit_is_refused(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    manifest = generation(store)
    digest = write_manifest(store, manifest)
    CommitLog(store, job_id="job").publish(commit_of(manifest, digest))
    write_requeue(store, record(generation_id=GENERATION, manifest_digest=digest, step=11))
    with pytest.raises(RestoreRefusedError, match="slot 2 disagree"):
        claim_and_restore(store, "b")


def test_a_lost_attempt_whose_manifest_was_changed_is_refused(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    manifest = generation(store)
    digest = write_manifest(store, manifest)
    CommitLog(store, job_id="job").publish(commit_of(manifest, digest))
    path_of(store, "manifest.json").write_bytes(b"{}")
    with pytest.raises(ManifestMismatchError, match="it was changed"):
        claim_and_restore(store, "b")


@pytest.mark.parametrize("answer", [PutAnswer.LOST, PutAnswer.REFUSED, PutAnswer.LATE])
def test_manifest_and_record_survive_an_ambiguous_answer(answer: PutAnswer) -> None:
    memory = MemoryStore()
    answers: list[PutAnswer] = [answer]
    store = AmbiguousStore(memory, answer=lambda _: answers.pop() if answers else PutAnswer.TRUE)
    manifest = Manifest(
        job_id="job",
        epoch=1,
        generation_id=GENERATION,
        step=1,
        world_size=1,
        entries=(),
        created_unix_ms=1,
    )
    digest = write_manifest(store, manifest, pause=lambda _: None)
    assert read_manifest(memory, generation_id=GENERATION, digest=digest) == manifest
    answers.append(answer)
    write_requeue(store, record(), pause=lambda _: None)
    assert read_requeue(memory, epoch=1) == record()


def test_the_record_of_another_job_is_refused_by_name(store: PosixStore) -> None:
    claim_and_restore(store, "a")
    write_requeue(store, record(job_id="other"))
    with pytest.raises(RestoreRefusedError, match="is of job 'other', not 'job'"):
        claim_and_restore(store, "b")


def test_an_attempt_that_was_not_dead_after_all_and_leaves_its_record_first_is_believed() -> None:
    left = record(cause="preemption")

    class Racing(MemoryStore):
        def get(self, name: str) -> bytes | None:
            """Nothing is there when it is looked for; then the attempt writes its record."""
            found = super().get(name)
            if found is None and name == "requeue/000001.json":
                write_requeue(self, left)
            return found

    store = Racing()
    log = CommitLog(store, job_id="job")
    log.claim(attempt_id="a", now_unix_ms=1)
    claimed = log.claim(attempt_id="b", now_unix_ms=2)
    assert restore_for(store, log, claimed, now_unix_ms=5, node_count=3) == left
