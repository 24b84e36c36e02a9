"""Reads a commit log, and checks that it is the one that was written.

The first look reads the newest slots, each against the one before it; later ones read what is new,
and that what was newest is still there. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from drainfsm.errors import (
    CommitLogError,
    ManifestMismatchError,
    OtherJobsStoreError,
    StoreUnreachableError,
)
from drainfsm.store.base import ObjectStore
from drainfsm.store.identity import IDENTITY, Identity, read_identity
from drainfsm.store.marks import MARKS, read_marks
from drainfsm.store.slots import (
    PREFIX,
    Placed,
    check_follows,
    missing_slot,
    open_slot,
    slot_name,
    slot_numbers,
)

READS_MAX = 3
READ_PAUSE_S = 0.1
"""Reads of a slot that is garbled: where there are no hard links it may be half written. And of a
listing that lacks the newest slot: a client of NFS may have an old one."""

CHECKED_SLOTS = 256
"""Newest slots that the first look reads. Of older ones it checks only that they exist; they are
read when somebody needs them."""

READ_AHEAD = 100

RESTORE = "restore it from a backup, or start the job in an empty store"


class LogReader:
    """Remembers what it has read: slots never change."""

    def __init__(self, store: ObjectStore, *, job_id: str, pause: Callable[[float], None]) -> None:
        self.identity: Identity | None = None
        """Of the store, as it was at the last look; None: it has none yet."""

        self.count = 0
        """Slots that there were at the last look."""

        self.newest_commit = 0
        """Place of the newest commit then; 0: there was none."""

        self._job_id = job_id
        self._store = store
        self._pause = pause
        self._slots: dict[int, Placed] = {}
        self._created = 0
        """The newest slot that is known to have been created, whatever a list says."""

    @property
    def store_id(self) -> str:
        return "" if self.identity is None else self.identity.store_id

    def identified(self, identity: Identity) -> None:
        """The store has got its identity from this process."""
        self.identity = identity

    def created(self, number: int) -> None:
        """Somebody has created that slot: a list without it is an old one."""
        self._created = max(self._created, number)

    def check_store(self) -> None:
        """This is the store that was looked at first.

        Raises:
            StoreUnreachableError: another one, or nothing, is in its place; it may come back.
            OtherJobsStoreError: it is another job's.
        """
        found = read_identity(self._store, job_id=self._job_id)
        if self.identity is not None and found != self.identity:
            there = "nothing that is known" if found is None else f"store {found.store_id}"
            raise StoreUnreachableError(
                f"{self._store.url} is not the store {self.identity.store_id} any more, there is "
                f"{there}: is it mounted?"
            )
        self.identity = found

    def look(self) -> None:
        """See how the log stands now.

        Raises:
            CommitLogError: a slot is missing or garbled, or of another job or store.
            StoreUnreachableError: no answer, or the store is not there any more.
        """
        self.check_store()
        marks = read_marks(self._store, from_slot=self.count)
        count = self._list_on(marks[-1].slot if marks else 0)
        self._check(range(max(self.count, count - CHECKED_SLOTS) + 1, count + 1))
        for mark in marks:
            known = self._slots.get(mark.slot)
            if known is not None and known.digest != mark.digest:
                raise CommitLogError(
                    f"slot {PREFIX}{slot_name(mark.slot)} is not the one that {MARKS} says was "
                    f"written: {RESTORE}"
                )
        self.newest_commit = self._find_commit(count)
        self.count = count

    def read(self, number: int) -> Placed:
        placed = self._slots.get(number)
        if placed is None:
            placed = self._slots[number] = self._decode(number)
        return placed

    def in_turn(self, numbers: Sequence[int], *, keep: bool = False) -> Iterator[Placed]:
        """These slots, read ahead, and each checked against the neighbour that was read before."""
        last: Placed | None = self._slots.get(numbers[0] - 1) if numbers else None
        for start in range(0, len(numbers), READ_AHEAD):
            for placed in self._read_some(numbers[start : start + READ_AHEAD]):
                self._check_neighbours(placed, last)
                last = placed
                if keep:
                    self._slots[placed.number] = placed
                yield placed

    def _check_neighbours(self, placed: Placed, other: Placed | None) -> None:
        if placed.number == 1:
            check_follows(placed, None)
        if other is not None and other.number == placed.number - 1:
            check_follows(placed, other)
        elif other is not None and other.number == placed.number + 1:
            check_follows(other, placed)

    def _read_some(self, numbers: Sequence[int]) -> Iterator[Placed]:
        unread = [number for number in numbers if number not in self._slots]
        names = [PREFIX + slot_name(number) for number in unread]
        found = dict(zip(unread, self._store.get_each(names), strict=True))
        for number in numbers:
            yield self._slots.get(number) or self._decode(number, found.get(number))

    def _list_on(self, marked: int) -> int:
        """How many slots there are: no fewer than there were, and the newest is still the same."""
        wanted = max(self.count, self._created, marked)
        for attempt in range(READS_MAX):
            if attempt:
                self._pause(READ_PAUSE_S)
            count = self._listed()
            if count >= wanted:
                break
        else:
            self._refuse_short(count, wanted)
        known = self._slots.get(self.count)
        if known is not None and self._decode(self.count).digest != known.digest:
            raise CommitLogError(
                f"slot {PREFIX}{slot_name(self.count)} is not the one that was there before: "
                f"{RESTORE}"
            )
        return count

    def _refuse_short(self, count: int, wanted: int) -> None:
        if self._store.get(PREFIX + slot_name(wanted)) is not None:
            raise StoreUnreachableError(
                f"{self._store.url} does not list slot {PREFIX}{slot_name(wanted)}, which is there"
            )
        raise CommitLogError(
            f"slot {PREFIX}{slot_name(count + 1)} is missing, though it was written: {RESTORE}"
        )

    def _listed(self) -> int:
        known = max(0, self.count - 1)  # what was newest is listed again
        after = slot_name(known) if known else ""
        numbers = slot_numbers(self._store.names(PREFIX, after=after))
        if (missing := missing_slot(numbers, after=known)) is not None:
            raise CommitLogError(
                f"slot {PREFIX}{slot_name(missing)} is missing, though later ones are there: "
                f"{RESTORE}"
            )
        return known + len(numbers)

    def _check(self, numbers: range) -> None:
        for _ in self.in_turn(numbers, keep=True):
            pass

    def _find_commit(self, count: int) -> int:
        """Slots of format version 1 do not say where the newest commit is."""
        for number in range(count, self.count, -1):
            if (newest := self.read(number).newest_commit) is not None:
                return newest
        return self.newest_commit

    def _decode(self, number: int, data: bytes | None = None) -> Placed:
        """``data``: as it was read already."""
        name = PREFIX + slot_name(number)
        for attempt in range(1, READS_MAX + 1):
            data = self._store.get(name) if data is None else data
            if data is None:
                raise CommitLogError(f"slot {name} is missing, though later ones are there")
            try:
                placed = open_slot(data, number)
            except ManifestMismatchError as error:
                if attempt == READS_MAX:
                    raise CommitLogError(f"{error}: {RESTORE}") from error
                self._pause(READ_PAUSE_S)
                data = None
            else:
                break
        self._check_owner(placed)
        return placed

    def _check_owner(self, placed: Placed) -> None:
        if placed.slot.job_id != self._job_id:
            raise OtherJobsStoreError(
                f"the store at {self._store.url} belongs to job {placed.slot.job_id!r}: "
                f"give job {self._job_id!r} a store of its own"
            )
        if placed.link is None:
            return
        if self.identity is None:
            self.check_store()  # written since the look began
        if placed.link.store_id != self.store_id:
            raise CommitLogError(
                f"slot {PREFIX}{slot_name(placed.number)} is of store {placed.link.store_id}, and "
                f"{IDENTITY} says {self.store_id or 'nothing'}: {RESTORE}"
            )
