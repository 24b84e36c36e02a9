"""What a save must be to be committed, and what ends its chance to be."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace

from drainfsm.core.manifest import Entry
from drainfsm.core.notice import Cause
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import generation_id
from drainfsm.errors import FencedError, ManifestMismatchError, SaveFailedError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.coordinator.saves import Written
from drainfsm.store import CommitLog
from drainfsm.store.generations import MANIFEST, generation_prefix
from drainfsm.store.kept_log import KEPT
from drainfsm.store.requeues import read_requeue
from drainfsm.testing.scenario import Scenario
from drainfsm.testing.stores import MemoryStore

GENERATION = generation_id(epoch=1, step=4, saver="p")
RECORD = RequeueRecord(
    job_id="job",
    epoch=1,
    cause=Cause("test"),
    generation_id=None,
    manifest_digest=None,
    step=None,
    world_size=2,
    capacity=Capacity(node_count=1),
    recorded_unix_ms=1,
)
WANTED = threading.Event()
"""Nobody sets it."""


class Store(MemoryStore):
    """Remembers in which order its objects came, and can be stopped before one."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.stops_at = "nothing"
        self.stopped = threading.Event()
        self.go_on = threading.Event()

    def put_if_absent(self, name: str, data: bytes) -> None:
        if name.startswith(self.stops_at):
            self.stopped.set()
            assert self.go_on.wait(60)
        super().put_if_absent(name, data)
        self.order.append(name)


class Attempt:
    """The first of a job of two ranks. Both have written their file of step 4."""

    def __init__(self) -> None:
        self.store = Store()
        self.log = CommitLog(self.store, job_id="job")
        self.log.claim(attempt_id="a", now_unix_ms=1)
        self.publisher = Publisher(
            self.store,
            self.log,
            job_id="job",
            epoch=1,
            attempt_id="a",
            settings=CheckpointSettings(),
            clock=Clock(),
        )
        self.written = Written(
            generation_id=GENERATION,
            step=4,
            entries=tuple(
                Entry(name=f"rank{rank}", size_bytes=3, checksum="sha256:00", rank=rank)
                for rank in range(2)
            ),
            file_counts={0: 1, 1: 1},
            durable_ms=1,
        )
        for rank in range(2):
            self.store.put(f"{generation_prefix(GENERATION)}rank{rank}", b"123")

    def publish(self, given_up: threading.Event = WANTED) -> None:
        self.publisher.publish(self.written, world_size=2, given_up=given_up)

    @property
    def commits(self) -> list[str]:
        return [commit.generation_id for _, commit in self.log.commits()]


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


def test_what_all_ranks_reported_and_the_store_holds_is_verified(attempt: Attempt) -> None:
    verified = attempt.publisher.verify(attempt.written, world_size=2)
    assert (verified.expected_count, verified.verified_count, verified.verified_bytes) == (2, 2, 6)


def test_a_rank_that_reported_nothing_is_missed(attempt: Attempt) -> None:
    with pytest.raises(ManifestMismatchError, match="rank"):
        attempt.publisher.verify(attempt.written, world_size=3)


def test_files_that_nobody_reported_are_refused(attempt: Attempt) -> None:
    attempt.store.put(f"{generation_prefix(GENERATION)}stranger", b"")
    with pytest.raises(ManifestMismatchError, match="stranger"):
        attempt.publisher.verify(attempt.written, world_size=2)


def test_files_that_are_gone_are_missed(attempt: Attempt) -> None:
    attempt.store.delete(f"{generation_prefix(GENERATION)}rank1")
    with pytest.raises(ManifestMismatchError, match="rank1"):
        attempt.publisher.verify(attempt.written, world_size=2)


def test_ranks_that_save_in_different_ways_are_refused(attempt: Attempt) -> None:
    mixed = replace(attempt.written, savers=("", "own"))
    with pytest.raises(ManifestMismatchError, match="different ways"):
        attempt.publisher.verify(mixed, world_size=2)


def test_the_manifest_is_there_before_the_commit(attempt: Attempt) -> None:
    attempt.publish()
    manifest = attempt.store.order.index(generation_prefix(GENERATION) + MANIFEST)
    commit = max(n for n, name in enumerate(attempt.store.order) if name.startswith("commits/"))
    assert manifest < commit


def test_a_save_that_was_given_up_is_not_committed(attempt: Attempt) -> None:
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(SaveFailedError, match="given up before its commit"):
        attempt.publish(given_up)
    assert attempt.commits == []


def test_a_save_that_is_given_up_while_its_manifest_is_written_is_not_committed(
    attempt: Attempt,
) -> None:
    """The store hung there, and nobody waits any more."""
    given_up, refused = threading.Event(), []

    def publish() -> None:
        with pytest.raises(SaveFailedError) as error:
            attempt.publish(given_up)
        refused.append(str(error.value))

    attempt.store.stops_at = generation_prefix(GENERATION) + MANIFEST
    publishing = threading.Thread(target=publish)
    publishing.start()
    assert attempt.store.stopped.wait(60)
    given_up.set()
    attempt.store.go_on.set()
    publishing.join()
    assert "given up before its commit" in refused[0]
    assert attempt.commits == []


def test_nothing_is_committed_behind_the_requeue_record(attempt: Attempt) -> None:
    attempt.publisher.close()
    with pytest.raises(SaveFailedError, match="came after the requeue record"):
        attempt.publish()
    assert attempt.commits == []


def test_closing_waits_for_the_commit_that_is_under_way(attempt: Attempt) -> None:
    """The requeue record names the newest commit, so none may come behind it."""
    attempt.store.stops_at = "commits/00000002"
    publishing = threading.Thread(target=attempt.publish)
    publishing.start()
    assert attempt.store.stopped.wait(60)
    seen: list[list[str]] = []

    def close() -> None:
        attempt.publisher.close()
        seen.append([name for name in attempt.store.order if name.startswith("commits/0")])

    closing = threading.Thread(target=close)
    closing.start()
    closing.join(0.2)
    attempt.store.go_on.set()
    publishing.join()
    closing.join()
    assert seen == [["commits/00000001.json", "commits/00000002.json"]]
    assert attempt.commits == [GENERATION]


def test_what_is_closed_while_its_manifest_is_written_is_not_committed(attempt: Attempt) -> None:
    attempt.store.stops_at = generation_prefix(GENERATION) + MANIFEST
    refused: list[str] = []

    def publish() -> None:
        with pytest.raises(SaveFailedError) as error:
            attempt.publish()
        refused.append(str(error.value))

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert attempt.store.stopped.wait(60)
    closing = threading.Thread(target=attempt.publisher.close)
    closing.start()
    while not attempt.publisher._closed:
        pass
    attempt.store.go_on.set()
    publishing.join()
    closing.join()
    assert "given up before its commit" in refused[0]
    assert attempt.commits == []


def test_a_fenced_attempt_leaves_no_requeue_record(attempt: Attempt) -> None:
    CommitLog(attempt.store, job_id="job").claim(attempt_id="b", now_unix_ms=2)
    with pytest.raises(FencedError):
        attempt.publisher.record_requeue(RECORD)
    assert read_requeue(attempt.store, epoch=1) is None


def test_a_requeue_record_says_of_which_store_it_is(attempt: Attempt) -> None:
    written = attempt.publisher.record_requeue(RECORD)
    assert written == read_requeue(attempt.store, epoch=1)
    assert written.store_id == attempt.log.store_id != ""


def test_records_that_are_kept_in_the_store_may_be_kept_again(attempt: Attempt) -> None:
    records: list[Record] = Scenario().history
    attempt.publisher.keep(records)
    attempt.publisher.keep(records)
    assert [name for name in attempt.store.objects if name.startswith(KEPT)] != []
