"""What one attempt may commit, and what ranks that are started again go on from."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from drainfsm.core.manifest import Entry
from drainfsm.core.notice import Cause
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import generation_id
from drainfsm.errors import SaveFailedError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.coordinator.saves import Written
from drainfsm.store import CommitLog
from drainfsm.store.generations import generation_prefix
from drainfsm.testing.stores import new_store


class Attempt:
    """The second one of a job, whose first has committed step 4."""

    def __init__(self, directory: Path) -> None:
        self.store = new_store(directory)
        self.log = CommitLog(self.store, job_id="job")
        self.publisher = self.begin(1)
        self.commit(4)
        self.publisher = self.begin(2)

    def begin(self, epoch: int, *, begins_after: int = -1, rewind: bool = False) -> Publisher:
        attempt_id = f"attempt-{epoch}"
        self.log.claim(attempt_id=attempt_id, now_unix_ms=epoch)
        self.epoch = epoch
        return Publisher(
            self.store,
            self.log,
            job_id="job",
            epoch=epoch,
            attempt_id=attempt_id,
            settings=CheckpointSettings(layout={"dp": 1}, rewind=rewind),
            clock=Clock(),
            begins_after=begins_after,
        )

    def commit(self, step: int, saver: str = "p") -> None:
        generation = generation_id(epoch=self.epoch, step=step, saver=saver)
        self.store.create_tree(generation_prefix(generation))
        self.store.put(f"{generation_prefix(generation)}file", b"x")
        written = Written(
            generation_id=generation,
            step=step,
            entries=(Entry(name="file", size_bytes=1, checksum="none:", rank=0),),
            file_counts={0: 1},
            durable_ms=1,
        )
        self.publisher.publish(written, world_size=1, given_up=threading.Event())

    @property
    def steps(self) -> list[int]:
        return [commit.step for _, commit in self.log.commits()]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_what_was_overtaken_by_a_newer_save_is_not_committed_behind_it(attempt: Attempt) -> None:
    attempt.commit(9)
    with pytest.raises(SaveFailedError, match="step 9 was committed before it"):
        attempt.commit(7)
    attempt.commit(9, saver="d1")
    assert attempt.steps == [4, 9, 9]


def test_ranks_that_are_started_again_go_on_from_what_the_attempt_committed_last(
    attempt: Attempt,
) -> None:
    assert attempt.publisher.begin_again() is None, "nothing yet: the requeue record counts"
    attempt.commit(6)
    attempt.commit(9)
    target = attempt.publisher.begin_again()
    assert target is not None
    assert (target.step, target.world_size, target.layout) == (9, 1, {"dp": 1})
    assert target.generation_id == generation_id(epoch=2, step=9, saver="p")


def test_ranks_that_went_back_behind_a_damaged_generation_may_save_again(attempt: Attempt) -> None:
    attempt.commit(9)
    attempt.publisher.begin_again()
    with pytest.raises(SaveFailedError, match="step 9 was there to restore"):
        attempt.commit(7, saver="p1")
    attempt.publisher.restored(4)
    attempt.commit(7, saver="p2")
    assert attempt.steps == [4, 9, 7]


def test_nothing_older_is_committed_than_what_there_was_to_restore(attempt: Attempt) -> None:
    """The ranks never called restore(), say."""
    attempt.publisher = attempt.begin(3, begins_after=9)
    with pytest.raises(SaveFailedError, match=r"does the job call restore\(\).*rewind = true"):
        attempt.commit(8)
    attempt.commit(9)
    attempt.publisher = attempt.begin(4, begins_after=9, rewind=True)
    attempt.commit(3)
    assert attempt.steps == [4, 9, 3]


def requeue(attempt: Attempt, **refused: set[str]) -> RequeueRecord:
    record = RequeueRecord(
        job_id="job",
        epoch=2,
        cause=Cause("test"),
        generation_id="as the log knows",
        manifest_digest="",
        step=4,
        world_size=1,
        capacity=Capacity(node_count=1),
        recorded_unix_ms=1,
    )
    return attempt.publisher.record_requeue(record, **refused)


def test_the_requeue_record_names_a_commit_that_the_log_does_not_know_yet(attempt: Attempt) -> None:
    attempt.commit(9)
    assert requeue(attempt).step == 9


def test_the_requeue_record_does_not_name_what_the_ranks_found_damaged(attempt: Attempt) -> None:
    """They went back behind it, and the job leaves on that."""
    attempt.commit(9)
    attempt.publisher.begin_again()
    damaged = generation_id(epoch=2, step=9, saver="p")
    assert requeue(attempt, refused={damaged}).generation_id == "as the log knows"
