"""The commit log: claims, commits, fencing, and what it refuses to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from drainfsm.core.manifest import Claim, Commit
from drainfsm.errors import CommitLogError, FencedError, StoreUnreachableError
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.posix import PosixStore
from drainfsm.store.settling import PUTS_MAX
from drainfsm.store.slots import slot_name, slot_numbers
from drainfsm.testing.stores import AmbiguousStore, MemoryStore, PutAnswer


def log_of(store: ObjectStore, *, job_id: str = "job") -> CommitLog:
    return CommitLog(store, job_id=job_id, pause=lambda _: None)


def commit(step: int, *, epoch: int = 1, attempt_id: str = "a", at_unix_ms: int = 1) -> Commit:
    return Commit(
        job_id="job",
        epoch=epoch,
        attempt_id=attempt_id,
        generation_id=f"e{epoch}-s{step}",
        manifest_digest=f"sha256:{step}",
        step=step,
        world_size=2,
        total_bytes=10,
        file_count=2,
        committed_unix_ms=at_unix_ms,
    )


def claim(epoch: int, attempt_id: str) -> Claim:
    return Claim(job_id="job", epoch=epoch, attempt_id=attempt_id, claimed_unix_ms=1)


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    store = PosixStore(tmp_path / "store")
    store.create()
    return store


def put_slot(store: ObjectStore, number: int, data: bytes) -> None:
    store.put(f"commits/{slot_name(number)}", data)


def test_an_empty_log_has_no_head(store: PosixStore) -> None:
    head = log_of(store).head()
    assert (head.slot, head.epoch, head.commit, head.last) == (0, 0, None, None)


def test_claims_and_commits_stand_in_one_order(store: PosixStore) -> None:
    log = log_of(store)
    first = log.claim(attempt_id="a", now_unix_ms=1)
    assert (first.slot, first.epoch, first.head.slot) == (1, 1, 0)
    assert [log.publish(commit(step)) for step in (10, 20)] == [2, 3]
    second = log_of(store).claim(attempt_id="b", now_unix_ms=2)
    assert (second.slot, second.epoch) == (4, 2)
    assert second.head.commit == commit(20)
    head = log_of(store).head()
    assert (head.slot, head.epoch, head.commit) == (4, 2, commit(20))
    assert isinstance(head.last, Claim)
    assert list(log_of(store).commits()) == [(2, commit(10)), (3, commit(20))]
    assert log_of(store).find("e1-s10") == (2, commit(10))
    assert log_of(store).find("e1-s30") is None


def test_a_claim_whose_answer_was_lost_is_found_again(store: PosixStore) -> None:
    for number, attempt_id in enumerate(("a", "b"), start=1):
        claimed = log_of(store).claim(attempt_id=attempt_id, now_unix_ms=1)
        again = log_of(store).claim(attempt_id=attempt_id, now_unix_ms=9)
        assert again == claimed
        assert log_of(store).head().epoch == claimed.epoch == number
        log_of(store).publish(commit(10, epoch=number, attempt_id=attempt_id))
        assert log_of(store).head().slot == claimed.slot + 1


def test_after_a_claim_the_older_epoch_publishes_nothing(store: PosixStore) -> None:
    old, new = log_of(store), log_of(store)
    old.claim(attempt_id="a", now_unix_ms=1)
    old.publish(commit(10))
    old.check_not_fenced(1)
    new.claim(attempt_id="b", now_unix_ms=2)
    for _ in range(2):
        with pytest.raises(FencedError, match="epoch 1 is fenced by epoch 2") as caught:
            old.publish(commit(20))
        assert (caught.value.own_epoch, caught.value.newest_epoch) == (1, 2)
    with pytest.raises(FencedError):
        old.check_not_fenced(1)
    new.check_not_fenced(2)
    assert new.publish(commit(11, epoch=2, attempt_id="b")) == 4


def test_publishing_a_generation_again_changes_nothing(store: PosixStore) -> None:
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    slot = log.publish(commit(10))
    log.publish(commit(20))
    assert log.publish(commit(10, at_unix_ms=99)) == slot
    log_of(store).claim(attempt_id="b", now_unix_ms=2)
    assert log.publish(commit(10)) == slot, "what was committed before the claim stays committed"
    assert log.head().slot == 4
    with pytest.raises(CommitLogError, match="another manifest"):
        log.publish(msgspec.structs.replace(commit(10), manifest_digest="sha256:other"))


@pytest.mark.parametrize("answer", [PutAnswer.LOST, PutAnswer.REFUSED, PutAnswer.LATE])
def test_an_ambiguous_answer_is_settled(answer: PutAnswer) -> None:
    memory = MemoryStore()
    answers: list[PutAnswer] = []
    store = AmbiguousStore(memory, answer=lambda _: answers.pop() if answers else PutAnswer.TRUE)
    log = log_of(store)
    answers.append(answer)
    assert log.claim(attempt_id="a", now_unix_ms=1).slot == 1
    answers.append(answer)
    assert log.publish(commit(10)) == 2
    while store.late:
        store.land(0)
    assert log_of(memory).head().slot == 2


def test_a_store_that_never_answers_is_reported_and_the_same_call_settles_it_later() -> None:
    memory = MemoryStore()
    broken = [PutAnswer.LOST] + [PutAnswer.REFUSED] * (PUTS_MAX - 1)
    answers = list(reversed(broken))
    store = AmbiguousStore(memory, answer=lambda _: answers.pop() if answers else PutAnswer.TRUE)
    log = log_of(store)
    with pytest.raises(StoreUnreachableError):
        log.claim(attempt_id="a", now_unix_ms=1)
    claimed = log.claim(attempt_id="a", now_unix_ms=7)
    assert (claimed.slot, claimed.epoch, claimed.head.slot) == (1, 1, 0), "not claimed twice"
    answers.extend(reversed(broken))
    with pytest.raises(StoreUnreachableError):
        log.publish(commit(10))
    assert log.publish(commit(10, at_unix_ms=9)) == 2
    assert log_of(memory).head().slot == 2


def test_the_wait_between_tries_is_bounded() -> None:
    pauses: list[float] = []
    store = AmbiguousStore(MemoryStore(), answer=lambda _: PutAnswer.REFUSED)
    with pytest.raises(StoreUnreachableError):
        CommitLog(store, job_id="job", pause=pauses.append).claim(attempt_id="a", now_unix_ms=1)
    assert pauses == [0.1, 0.2, 0.4]


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_a_missing_slot_is_named(store: PosixStore, missing: int) -> None:
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    for step in range(4):
        log.publish(commit(step))
    store.delete(f"commits/{slot_name(missing)}")
    for use in (
        lambda: log_of(store).head(),
        lambda: log_of(store).claim(attempt_id="b", now_unix_ms=2),
        lambda: list(log_of(store).commits()),
    ):
        with pytest.raises(CommitLogError, match=rf"commits/{missing:08d}\.json is missing"):
            use()


def test_a_slot_that_vanishes_behind_a_running_attempt_is_found(store: PosixStore) -> None:
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    put_slot(store, 3, b"{}")
    with pytest.raises(CommitLogError, match=r"00000002\.json is missing"):
        log.publish(commit(10))


GARBLED = [
    (b"", "garbled"),
    (b'{"kind":"claim"', "garbled"),
    (b'{"format_version":1,"kind":"other"}', "garbled"),
    (b'{"format_version":9,"kind":"claim"}', "format version 9"),
]


@pytest.mark.parametrize(("data", "says"), GARBLED)
def test_a_garbled_slot_is_named(store: PosixStore, data: bytes, says: str) -> None:
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    put_slot(store, 2, data)
    for use in (
        lambda: log_of(store).head(),
        lambda: log_of(store).claim(attempt_id="b", now_unix_ms=2),
        lambda: log.publish(commit(10)),
    ):
        with pytest.raises(CommitLogError, match=rf"00000002\.json.*{says}"):
            use()
    assert store.get("commits/00000003.json") is None, "nothing was written after it"


def test_a_half_written_slot_is_read_again() -> None:
    """Without hard links a reader can see a slot before it is finished."""
    memory = MemoryStore()
    log_of(memory).claim(attempt_id="a", now_unix_ms=1)
    whole = memory.objects["commits/00000001.json"]
    memory.objects["commits/00000001.json"] = whole[:20]

    def finish(_: float) -> None:
        memory.objects["commits/00000001.json"] = whole

    head = CommitLog(memory, job_id="job", pause=finish).head()
    assert head.epoch == 1


def test_an_epoch_that_goes_backwards_is_found(store: PosixStore) -> None:
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    log.claim(attempt_id="b", now_unix_ms=1)
    store.delete_tree("marks/")
    for number, slot in enumerate(("a", "b"), start=1):
        put_slot(store, number, msgspec.json.encode(claim(number, slot)))
    put_slot(store, 3, msgspec.json.encode(commit(10, epoch=1)))
    with pytest.raises(CommitLogError, match=r"00000003\.json has epoch 1, not 2"):
        list(log_of(store).commits())


def test_files_that_are_no_slots_are_passed_over(store: PosixStore) -> None:
    """NFS leaves such files behind while somebody still has a deleted one open."""
    log_of(store).claim(attempt_id="a", now_unix_ms=1)
    store.put("commits/.nfs000000001", b"x")
    store.put("commits/00000002.json.bak", b"x")
    assert log_of(store).head().slot == 1


def test_the_store_of_another_job_is_refused_by_name(store: PosixStore) -> None:
    log_of(store).claim(attempt_id="a", now_unix_ms=1)
    other = log_of(store, job_id="other")
    for use in (other.head, lambda: other.claim(attempt_id="b", now_unix_ms=2)):
        with pytest.raises(CommitLogError, match=r"belongs to job 'job': give job 'other' a store"):
            use()


def test_a_commit_that_was_seen_stays_the_newest_behind_later_claims(store: PosixStore) -> None:
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    log.publish(commit(10))
    assert log.head().commit == commit(10)
    log_of(store).claim(attempt_id="b", now_unix_ms=2)
    assert log.head().commit == commit(10)


def test_slots_are_counted_in_their_order_however_a_store_lists_them() -> None:
    assert slot_numbers(["00000003.json", "00000001.json", ".nfs01", "00000002.json"]) == [1, 2, 3]


class OldLists(MemoryStore):
    """Lists what was there some lists ago, as a client of NFS may; reads and puts are true."""

    old = 0
    """So many lists of the slots still lack the newest name."""

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        found = super().names(prefix, after=after)
        if self.old and found and prefix != "marks/":
            self.old -= 1
            return found[:-1]
        return [] if self.old else found


def test_a_list_without_the_slot_that_this_process_created_is_an_old_one() -> None:
    """Its own commit is neither taken for a rival's, nor forgotten in what it leaves behind."""
    store = OldLists()
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    log.publish(commit(1))
    log.publish(commit(2))
    store.old = 2
    head = log.head()
    assert head.commit is not None
    assert (head.slot, head.commit.step) == (3, 2)
    log.publish(commit(3))
    store.old = 100
    with pytest.raises(StoreUnreachableError, match=r"does not list slot commits/00000004"):
        log.publish(commit(4))
    store.old = 0
    assert log.publish(commit(4)) == 5


def test_a_lost_race_is_not_run_again_by_an_old_list() -> None:
    store = OldLists()
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    log_of(store).claim(attempt_id="b", now_unix_ms=2)
    store.old = 30
    with pytest.raises(StoreUnreachableError, match=r"does not list slot commits/00000002"):
        log.publish(commit(1))
    store.old = 0
    with pytest.raises(FencedError):
        log.publish(commit(1))
