"""Claims and commits in one total order, by put-if-absent alone.

Slot n + 1 can be created only by somebody who has seen slot n, and only once. An attempt claims
with the next epoch; publishing looks at the newest slot first. So once epoch n + 1 has a slot,
whatever epoch n still tries to create loses the race for the next slot, looks, and is fenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from drainfsm.core.codec import decode_object, encode_object
from drainfsm.core.manifest import Claim, Commit, Slot
from drainfsm.errors import (
    CommitLogError,
    FencedError,
    ManifestMismatchError,
    OtherJobsStoreError,
)
from drainfsm.store.base import ObjectStore
from drainfsm.store.settling import put_settled
from drainfsm.store.slots import PREFIX, missing_slot, slot_name, slot_numbers

RACES_MAX = 16
"""Lost races for a slot before giving up: an attempt has few rivals, each of which stops."""

READS_MAX = 3
READ_PAUSE_S = 0.1
"""Reads of a slot that is garbled: where there are no hard links it may be half written."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the commit log."""

    slot: int
    """Number of the newest slot; 0: the log is empty."""

    epoch: int
    """Of the newest claim; 0: the job was never claimed."""

    commit: Commit | None
    """The newest commit, which may stand before the newest claim."""

    last: Slot | None


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    epoch: int
    head: Head
    """As it was before the claim."""


class CommitLog:
    """The commit log of one job. Remembers what it has read: slots never change."""

    def __init__(
        self, store: ObjectStore, *, job_id: str, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.job_id = job_id
        self._store = store
        self._pause = pause
        self._count = 0
        self._slots: dict[int, Slot] = {}
        self._newest_commit = 0

    def head(self) -> Head:
        """The end of the log as it is now.

        Raises:
            CommitLogError: a slot is missing or garbled, or belongs to another job.
        """
        known = self._count
        after = slot_name(known) if known else ""
        numbers = slot_numbers(self._store.names(PREFIX, after=after))
        if (missing := missing_slot(numbers, after=known)) is not None:
            raise CommitLogError(
                f"slot {PREFIX}{slot_name(missing)} is missing, though later ones are there: "
                "restore it from a backup, or start the job in an empty store"
            )
        count = known + len(numbers)
        last = self._read(count) if count else None
        newest_commit = self._find_commit(count, down_to=known)
        self._count = count
        self._newest_commit = newest_commit
        commit = cast(Commit, self._read(newest_commit)) if newest_commit else None
        return Head(slot=count, epoch=last.epoch if last else 0, commit=commit, last=last)

    def claim(
        self,
        *,
        attempt_id: str,
        now_unix_ms: int,
        admit: Callable[[Head], None] = lambda head: None,
    ) -> Claimed:
        """Take the job: from here on older epochs are fenced. ``admit`` sees the log as it is
        before, and raises where nothing may be claimed behind it.

        Raises:
            CommitLogError: the log is damaged, of another job, or too many rivals claim.
            StoreUnreachableError: no answer; the claim may stand, and then fences whoever runs.
        """
        for _ in range(RACES_MAX):
            head = self.head()
            if isinstance(head.last, Claim) and head.last.attempt_id == attempt_id:
                return self._claimed_before(head)  # an earlier call got no answer, but took effect
            admit(head)
            epoch, slot = head.epoch + 1, head.slot + 1
            claim = Claim(
                job_id=self.job_id, epoch=epoch, attempt_id=attempt_id, claimed_unix_ms=now_unix_ms
            )
            if self._create(slot, claim):
                return Claimed(slot=slot, epoch=epoch, head=head)
        raise CommitLogError(f"lost {RACES_MAX} races for the next slot: too many rivals claim")

    def publish(self, commit: Commit) -> int:
        """Make the generation exist; returns its slot. The same generation again changes nothing.

        Raises:
            FencedError: a newer epoch has claimed the job.
            CommitLogError: the log is damaged, or the epoch was never claimed by this attempt.
            StoreUnreachableError: no answer; publish the same commit again to settle it.
        """
        for _ in range(RACES_MAX):
            head = self.head()
            if (slot := self._slot_of(commit, head)) is not None:
                return slot
            self._check_claimed(commit, head)
            if self._create(head.slot + 1, commit):
                return head.slot + 1
        raise CommitLogError(f"lost {RACES_MAX} races for the next slot: who else writes here?")

    def check_not_fenced(self, epoch: int) -> None:
        """Raises:
        FencedError: a newer epoch has claimed the job.
        """
        newest = self.head().epoch
        if newest > epoch:
            raise FencedError(self.job_id, own_epoch=epoch, newest_epoch=newest)

    def commits(self) -> Iterator[tuple[int, Commit]]:
        """All committed generations with their slots, oldest first. Reads every slot.

        Raises:
            CommitLogError: a slot is missing or garbled, or its epoch does not follow.
        """
        epoch = 0
        for number in range(1, self.head().slot + 1):
            slot = self._read(number, keep=False)
            expected = epoch + 1 if isinstance(slot, Claim) else epoch
            if slot.epoch != expected:
                raise CommitLogError(
                    f"slot {PREFIX}{slot_name(number)} has epoch {slot.epoch}, not {expected}"
                )
            epoch = slot.epoch
            if isinstance(slot, Commit):
                yield number, slot

    def before(self, generation_id: str) -> Iterator[Commit]:
        """The generations that were committed before that one, newest first.

        Raises:
            CommitLogError: a slot on the way is missing or garbled.
        """
        met = False
        for number in range(self.head().slot, 0, -1):
            slot = self._read(number, keep=False)
            if met and isinstance(slot, Commit):
                yield slot
            met = met or (isinstance(slot, Commit) and slot.generation_id == generation_id)

    def find(self, generation_id: str) -> tuple[int, Commit] | None:
        """The commit of that generation, looked for from the newest slot backwards."""
        for number in range(self.head().slot, 0, -1):
            slot = self._read(number, keep=False)
            if isinstance(slot, Commit) and slot.generation_id == generation_id:
                return number, slot
        return None

    def _claimed_before(self, head: Head) -> Claimed:
        slot = head.slot - 1
        last = self._read(slot) if slot else None
        before = Head(slot=slot, epoch=head.epoch - 1, commit=head.commit, last=last)
        return Claimed(slot=head.slot, epoch=head.epoch, head=before)

    def _slot_of(self, commit: Commit, head: Head) -> int | None:
        """Where the generation is committed already, if it is."""
        for number in range(head.slot, 0, -1):
            slot = self._read(number)
            if slot.epoch < commit.epoch:
                return None
            if isinstance(slot, Commit) and slot.generation_id == commit.generation_id:
                if slot.manifest_digest != commit.manifest_digest:
                    raise CommitLogError(
                        f"generation {commit.generation_id} is committed with another manifest"
                    )
                return number
        return None

    def _check_claimed(self, commit: Commit, head: Head) -> None:
        if head.epoch > commit.epoch:
            raise FencedError(self.job_id, own_epoch=commit.epoch, newest_epoch=head.epoch)
        number = head.slot
        while number and not isinstance(self._read(number), Claim):
            number -= 1
        claim = self._read(number) if number else None
        if claim is None or (claim.epoch, claim.attempt_id) != (commit.epoch, commit.attempt_id):
            raise CommitLogError(
                f"epoch {commit.epoch} was not claimed by attempt {commit.attempt_id}: claim first"
            )

    def _create(self, number: int, slot: Slot) -> bool:
        """Create the slot; False if somebody else has it."""
        name = PREFIX + slot_name(number)
        return put_settled(self._store, name, encode_object(slot), pause=self._pause)

    def _find_commit(self, count: int, *, down_to: int) -> int:
        for number in range(count, down_to, -1):
            if isinstance(self._read(number), Commit):
                return number
        return self._newest_commit

    def _read(self, number: int, *, keep: bool = True) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._decode(number)
            if keep:
                self._slots[number] = slot
        return slot

    def _decode(self, number: int) -> Slot:
        name = PREFIX + slot_name(number)
        for attempt in range(1, READS_MAX + 1):
            data = self._store.get(name)
            if data is None:
                raise CommitLogError(f"slot {name} is missing, though later ones are there")
            try:
                slot = cast(Slot, decode_object(data, cast(Any, Slot), what=f"slot {name}"))
            except ManifestMismatchError as error:
                if attempt == READS_MAX:
                    raise CommitLogError(str(error)) from error
                self._pause(READ_PAUSE_S)
            else:
                break
        if slot.job_id != self.job_id:
            raise OtherJobsStoreError(
                f"the store at {self._store.url} belongs to job {slot.job_id!r}: "
                f"give job {self.job_id!r} a store of its own"
            )
        return slot
