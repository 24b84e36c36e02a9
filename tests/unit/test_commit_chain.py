"""A commit log that is not the one that was written is refused, today and at a later start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.core.codec import encode_object
from drainfsm.core.manifest import Commit
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.errors import (
    CommitLogError,
    ConfigError,
    OtherJobsStoreError,
    RestoreRefusedError,
    SlotTakenError,
    StoreUnreachableError,
)
from drainfsm.store import log_reader
from drainfsm.store.commits import CommitLog
from drainfsm.store.identity import IDENTITY
from drainfsm.store.marks import MARKS
from drainfsm.store.requeues import check_restorable, write_requeue
from drainfsm.store.slots import PREFIX, linked, open_slot, slot_name
from drainfsm.testing.stores import MemoryStore, new_store

SLOTS = 6


def log_of(store: MemoryStore, *, job_id: str = "job") -> CommitLog:
    return CommitLog(store, job_id=job_id, pause=lambda _: None)


def commit_of(step: int, *, epoch: int, attempt_id: str) -> Commit:
    return Commit(
        job_id="job",
        epoch=epoch,
        attempt_id=attempt_id,
        generation_id=f"e{epoch:06d}-s{step:012d}-p",
        manifest_digest=f"sha256:{step}",
        step=step,
        world_size=1,
        total_bytes=1,
        file_count=1,
        committed_unix_ms=1,
    )


def written(*, attempts: int = 2) -> MemoryStore:
    """Each attempt claims and commits twice."""
    store = MemoryStore()
    for epoch in range(1, attempts + 1):
        log = log_of(store)
        log.claim(attempt_id=f"a{epoch}", now_unix_ms=1)
        for number in range(2):
            log.publish(commit_of(10 * epoch + number, epoch=epoch, attempt_id=f"a{epoch}"))
    return store


def name_of(number: int) -> str:
    return PREFIX + slot_name(number)


def lose(store: MemoryStore, number: int) -> None:
    for at in range(number, SLOTS + 3):
        store.objects.pop(name_of(at), None)


def copy(store: MemoryStore, number: int) -> None:
    store.objects[name_of(number)] = store.objects[name_of(number - 1)]


def swap(store: MemoryStore, number: int) -> None:
    objects = store.objects
    one, other = name_of(number - 1), name_of(number)
    objects[one], objects[other] = objects[other], objects[one]


def one_bit_of_the_epoch(store: MemoryStore, number: int) -> None:
    data = store.objects[name_of(number)]
    at = data.index(b'"epoch": ') + len(b'"epoch": ')
    store.objects[name_of(number)] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def rewritten(store: MemoryStore, number: int) -> None:
    """A slot of another log, well formed and in its place."""
    store.objects[name_of(number)] = written_elsewhere().objects[name_of(number)]


def written_elsewhere() -> MemoryStore:
    store = MemoryStore()
    for number in range(1, SLOTS + 1):
        log_of(store).claim(attempt_id="a1" if number == 1 else f"x{number}", now_unix_ms=1)
    return store


DAMAGE = [lose, copy, swap, one_bit_of_the_epoch, rewritten]


@pytest.mark.parametrize("number", [2, 4, SLOTS])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_seen_by_every_reader_and_at_every_later_start(
    damage: Callable[[MemoryStore, int], None], number: int
) -> None:
    store = written()
    assert log_of(store).head().slot == SLOTS
    damage(store, number)
    before = dict(store.objects)
    for use in (
        lambda: log_of(store).head(),
        lambda: list(log_of(store).commits()),
        lambda: log_of(store).find("none"),
        lambda: log_of(store).claim(attempt_id="b", now_unix_ms=2),
        lambda: log_of(store).claim(attempt_id="c", now_unix_ms=3),
    ):
        with pytest.raises(CommitLogError, match=r"commits/\d{8}\.json"):
            use()
    assert store.objects == before, "nothing was written behind it"


@pytest.mark.parametrize("number", [1, 3, SLOTS])
def test_every_changed_byte_of_a_slot_is_seen(number: int) -> None:
    whole = written().objects[name_of(number)]
    for at in range(len(whole)):
        for changed in (whole[at] ^ 1, whole[at] ^ 4):
            store = without_marks(written())
            store.objects[name_of(number)] = whole[:at] + bytes([changed]) + whole[at + 1 :]
            with pytest.raises(CommitLogError):
                log_of(store).head()


def without_marks(store: MemoryStore) -> MemoryStore:
    for name in [name for name in store.objects if name.startswith(MARKS)]:
        del store.objects[name]
    return store


def test_a_well_formed_slot_of_another_job_is_refused() -> None:
    store = without_marks(written())
    behind, newest = (open_slot(store.objects[name_of(n)], n) for n in (SLOTS - 1, SLOTS))
    assert newest.link is not None
    store.objects[name_of(SLOTS)] = linked(
        replace(newest.slot, job_id="other"),
        behind=behind,
        newest_commit=newest.link.newest_commit,
        store_id=newest.link.store_id,
    )
    with pytest.raises(CommitLogError):
        log_of(store).head()


def test_a_slot_follows_the_one_that_was_before_it_when_it_was_written() -> None:
    store, other = without_marks(written()), MemoryStore()
    first = [name_of(number) for number in range(1, SLOTS - 1)]
    other.objects = {name: store.objects[name] for name in (*first, IDENTITY)}
    log_of(other).publish(commit_of(99, epoch=2, attempt_id="a2"))
    store.objects[name_of(SLOTS - 1)] = other.objects[name_of(SLOTS - 1)]
    with pytest.raises(CommitLogError, match=r"00000006\.json was not written after"):
        log_of(store).head()


def test_a_slot_without_a_link_stands_before_all_that_have_one() -> None:
    store = without_marks(written())
    newest = open_slot(store.objects[name_of(SLOTS)], SLOTS)
    store.objects[name_of(SLOTS)] = encode_object(newest.slot)
    with pytest.raises(CommitLogError, match=r"00000006\.json has no link"):
        log_of(store).head()


def test_a_log_of_which_nothing_is_left_is_not_taken_for_a_fresh_one() -> None:
    store = written()
    lose(store, 1)
    with pytest.raises(CommitLogError, match=r"00000001\.json is missing, though it was written"):
        log_of(store).claim(attempt_id="b", now_unix_ms=2)


def test_an_attempt_that_runs_sees_that_its_newest_slot_is_gone_or_another() -> None:
    for damage in (lose, copy, one_bit_of_the_epoch):
        store = written()
        log = log_of(store)
        log.head()
        damage(store, SLOTS)
        with pytest.raises(CommitLogError):
            log.publish(commit_of(99, epoch=2, attempt_id="a2"))


def test_a_listing_that_lags_behind_is_no_damage() -> None:
    """A client of NFS may have an old one: the slot itself is there."""

    class Lagging(MemoryStore):
        hidden = name_of(SLOTS)

        def names(self, prefix: str, *, after: str = "") -> list[str]:
            return [n for n in super().names(prefix, after=after) if prefix + n != self.hidden]

    store = Lagging()
    store.objects = written().objects
    with pytest.raises(StoreUnreachableError, match=r"does not list slot .*00000006\.json"):
        log_of(store).head()
    caught_up = CommitLog(store, job_id="job", pause=lambda _: setattr(store, "hidden", ""))
    assert caught_up.head().slot == SLOTS


def test_marks_are_not_needed_and_never_wrong() -> None:
    store = written()
    marks = {name: data for name, data in store.objects.items() if name.startswith(MARKS)}
    assert len(marks) == SLOTS
    for name in marks:
        del store.objects[name]
    assert log_of(store).claim(attempt_id="b", now_unix_ms=2).slot == SLOTS + 1
    store.objects |= marks  # of writers that were frozen meanwhile
    assert log_of(store).claim(attempt_id="c", now_unix_ms=2).slot == SLOTS + 2
    lose(store, SLOTS + 2)
    with pytest.raises(CommitLogError, match=r"00000008\.json is missing, though it was written"):
        log_of(store).head()


def test_a_slot_that_was_marked_may_not_be_another() -> None:
    """It is whole, and follows the one before: only its mark says that it is not what was there."""
    store, other = written(), MemoryStore()
    newest = f"{SLOTS:08d}"
    other.objects = {name: data for name, data in store.objects.items() if newest not in name}
    log_of(other).publish(commit_of(99, epoch=2, attempt_id="a2"))
    store.objects[name_of(SLOTS)] = other.objects[name_of(SLOTS)]
    with pytest.raises(CommitLogError, match="is not the one that marks/ says was written"):
        log_of(store).head()


def test_a_mark_that_cannot_be_written_costs_nothing() -> None:
    class NoMark(MemoryStore):
        def put_if_absent(self, name: str, data: bytes) -> None:
            if name.startswith(MARKS):
                raise StoreUnreachableError("no answer")
            super().put_if_absent(name, data)

    store = NoMark()
    log = log_of(store)
    assert log.claim(attempt_id="a", now_unix_ms=1).slot == 1
    assert log.publish(commit_of(1, epoch=1, attempt_id="a")) == 2


def test_of_a_long_log_only_the_newest_slots_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "CHECKED_SLOTS", 4)
    read: list[str] = []

    class Counting(MemoryStore):
        def get(self, name: str) -> bytes | None:
            read.append(name)
            return super().get(name)

    store = Counting()
    store.objects = written(attempts=20).objects
    head = log_of(store).head()
    assert (head.slot, head.epoch) == (60, 20)
    assert head.commit == commit_of(201, epoch=20, attempt_id="a20")
    slots = {name for name in read if name.startswith(PREFIX)}
    assert slots == {name_of(number) for number in (57, 58, 59, 60)}
    for _ in range(7):
        log_of(store).claim(attempt_id="b" + str(len(store.objects)), now_unix_ms=1)
    read.clear()
    assert log_of(store).head().commit == head.commit, "found without reading what is between"
    assert len(set(read) & {name_of(n) for n in range(1, 100)}) == 5


def test_an_older_commit_in_the_place_of_the_newest_is_seen_where_no_neighbor_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_reader, "CHECKED_SLOTS", 2)
    store = written()
    for number in range(3):
        log_of(store).claim(attempt_id=f"b{number}", now_unix_ms=1)
    store.objects[name_of(SLOTS)] = store.objects[name_of(SLOTS - 1)]
    with pytest.raises(CommitLogError, match=r"00000006\.json was written for place 5"):
        log_of(without_marks(store)).head()


NOTHING_TO_RESTORE = RequeueRecord(
    job_id="job",
    epoch=2,
    cause=Cause.LOST,
    generation_id=None,
    manifest_digest=None,
    step=None,
    world_size=0,
    capacity=Capacity(node_count=1),
    recorded_unix_ms=1,
)


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"store_id": "x"}, "is of store x, and this one is a1"), ({"job_id": "x"}, "is of job 'x'")],
)
def test_a_requeue_record_of_another_store_or_job_is_refused(
    changed: dict[str, str], says: str
) -> None:
    store = written()
    write_requeue(store, replace(NOTHING_TO_RESTORE, **changed))
    log = log_of(store)
    with pytest.raises(RestoreRefusedError, match=says):
        check_restorable(store, log, log.head())


def test_a_requeue_record_tells_that_the_claim_of_its_attempt_is_gone() -> None:
    store = without_marks(written())
    write_requeue(store, NOTHING_TO_RESTORE)
    log = log_of(store)
    check_restorable(store, log, log.head(), damaged_layout={})
    lose(store, 4)
    log = log_of(store)
    with pytest.raises(CommitLogError, match=r"000002\.json is of an attempt that no slot claims"):
        check_restorable(store, log, log.head())


# --- the store -----------------------------------------------------------------------------------


def test_a_store_keeps_the_identity_of_its_first_claim() -> None:
    store = MemoryStore()
    first = log_of(store).claim(attempt_id="a", now_unix_ms=1)
    second = log_of(store).claim(attempt_id="b", now_unix_ms=2)
    assert (
        first.store_id
        == second.store_id
        == log_of(store).claim(attempt_id="c", now_unix_ms=3).store_id
    )


def test_what_is_in_the_place_of_the_store_is_not_written_into() -> None:
    store = MemoryStore()
    log = log_of(store)
    log.claim(attempt_id="a", now_unix_ms=1)
    mounted = dict(store.objects)
    other = MemoryStore()
    log_of(other).claim(attempt_id="x", now_unix_ms=1)
    for there in ({}, other.objects):
        store.objects = dict(there)
        for use in (
            log.head,
            log.check_store,
            lambda: log.publish(commit_of(1, epoch=1, attempt_id="a")),
            lambda: log.check_not_fenced(1),
        ):
            with pytest.raises(StoreUnreachableError, match="is not the store a any more"):
                use()
        assert store.objects == there
    store.objects = mounted
    assert log.publish(commit_of(1, epoch=1, attempt_id="a")) == 2, "it came back"


def test_slots_without_the_identity_that_they_name_are_refused() -> None:
    store = written()
    identity = store.objects.pop(IDENTITY)
    for _ in range(2):
        with pytest.raises(CommitLogError, match=r"of store a1, and store\.json says nothing"):
            log_of(store).claim(attempt_id="b", now_unix_ms=2)
    store.objects[IDENTITY] = identity
    assert log_of(store).claim(attempt_id="b", now_unix_ms=2).slot == SLOTS + 1


def test_the_identity_says_whose_the_store_is() -> None:
    store = written()
    with pytest.raises(OtherJobsStoreError, match=r"belongs to job 'job'"):
        log_of(store, job_id="other").head()


class Replaces(MemoryStore):
    """Ignores the condition of a conditional put."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        self.put(name, data)


class Forgets(MemoryStore):
    def get(self, name: str) -> bytes | None:
        return b"older" if "probe" in name else super().get(name)

    def put_if_absent(self, name: str, data: bytes) -> None:
        try:
            super().put_if_absent(name, data)
        except SlotTakenError:
            if "probe" not in name:
                raise


class DoesNotList(MemoryStore):
    def names(self, prefix: str, *, after: str = "") -> list[str]:
        return []


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Replaces, "replaced by a put that must only create"),
        (Forgets, "put-if-absent"),
        (DoesNotList, "not listed"),
    ],
)
def test_a_store_that_cannot_hold_a_commit_log_is_not_claimed(
    kind: type[MemoryStore], says: str
) -> None:
    store = kind()
    for _ in range(2):
        with pytest.raises(ConfigError, match=says):
            log_of(store).claim(attempt_id="a", now_unix_ms=1)
    assert store.objects == {}


def test_a_store_is_tried_once_and_again_where_it_is_called_otherwise() -> None:
    store = MemoryStore()
    log_of(store).claim(attempt_id="a", now_unix_ms=1)
    moved = Replaces("memory://moved")
    moved.objects = store.objects
    with pytest.raises(ConfigError, match="memory://moved cannot hold a commit log"):
        log_of(moved).claim(attempt_id="b", now_unix_ms=2)


def test_trying_a_directory_leaves_nothing_behind(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    CommitLog(store, job_id="job").claim(attempt_id="a", now_unix_ms=1)
    slot, mark, identity = sorted(store.list(""))
    assert (slot, identity) == ("commits/00000001.json", IDENTITY)
    assert mark.startswith(f"{MARKS}00000001-")
