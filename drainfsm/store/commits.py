"""Claims and commits in one total order, by put-if-absent alone.

Slot n + 1 can be created only by somebody who has seen slot n, and only once. An attempt claims
with the next epoch; publishing looks at the newest slot first. So once epoch n + 1 has a slot,
whatever epoch n still tries to create loses the race for the next slot, looks, and is fenced.

Each slot is tied to the one before it (``store/slots.py``), and marks say how far the log came
(``store/marks.py``), so that no reader takes a damaged log for a shorter one, today or later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from drainfsm.core.manifest import Claim, Commit, Slot
from drainfsm.errors import CommitLogError, FencedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.identity import Identity, write_identity
from drainfsm.store.log_reader import LogReader
from drainfsm.store.marks import Mark, write_mark
from drainfsm.store.probe import check_promises
from drainfsm.store.settling import put_settled
from drainfsm.store.slots import PREFIX, linked, open_slot, slot_name

RACES_MAX = 16
"""Lost races for a slot before giving up: an attempt has few rivals, each of which stops."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the commit log."""

    slot: int
    """Number of the newest slot; 0: the log is empty."""

    epoch: int
    """Of the newest claim; 0: the job was never claimed."""

    commit: Commit | None
    """The newest commit, which may precede the newest claim."""

    last: Slot | None


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    epoch: int
    head: Head
    """As it was before the claim."""

    store_id: str


class CommitLog:
    """The commit log of one job. Remembers what it has read: slots never change."""

    def __init__(
        self, store: ObjectStore, *, job_id: str, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.job_id = job_id
        self._store = store
        self._pause = pause
        self._reader = LogReader(store, job_id=job_id, pause=pause)

    @property
    def store_id(self) -> str:
        """Identity of the store at the last look; empty: it has none yet."""
        return self._reader.store_id

    def check_store(self) -> None:
        """This is the store that was looked at first.

        Raises:
            StoreUnreachableError: another one, or nothing, is in its place. It may come back.
            OtherJobsStoreError: it is another job's.
        """
        self._reader.check_store()

    def head(self) -> Head:
        """The end of the log as it is now.

        Raises:
            CommitLogError: a slot is missing or garbled, or belongs to another job or store.
            StoreUnreachableError: no answer, or the store is not there any more.
        """
        reader = self._reader
        reader.look()
        last = reader.read(reader.count).slot if reader.count else None
        commit = reader.read(reader.newest_commit).slot if reader.newest_commit else None
        return Head(
            slot=reader.count,
            epoch=last.epoch if last else 0,
            commit=commit if isinstance(commit, Commit) else None,
            last=last,
        )

    def claim(
        self,
        *,
        attempt_id: str,
        now_unix_ms: int,
        admit: Callable[[Head], None] = lambda head: None,
    ) -> Claimed:
        """Take the job: from here on older epochs are fenced. ``admit`` sees the log as it was
        before, and raises if it must not be claimed.

        Raises:
            CommitLogError: the log is damaged, of another job, or too many rivals claim.
            ConfigError: the store does not keep what a commit log needs; nothing was claimed.
            StoreUnreachableError: no answer; the claim may stand, and then fences whoever runs.
        """
        for _ in range(RACES_MAX):
            head = self.head()
            if isinstance(head.last, Claim) and head.last.attempt_id == attempt_id:
                self._keep(head.slot)  # an earlier call got no answer, but took effect
                return self._claimed_before(head)
            admit(head)
            self._identify(attempt_id, now_unix_ms=now_unix_ms)
            epoch, slot = head.epoch + 1, head.slot + 1
            claim = Claim(
                job_id=self.job_id, epoch=epoch, attempt_id=attempt_id, claimed_unix_ms=now_unix_ms
            )
            if self._create(claim, head):
                return Claimed(slot=slot, epoch=epoch, head=head, store_id=self.store_id)
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
                self._keep(slot)
                return slot
            self._check_claimed(commit, head)
            if self._create(commit, head):
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
            CommitLogError: a slot is missing or garbled, or does not follow the one before it.
        """
        for number, slot in self.slots():
            if isinstance(slot, Commit):
                yield number, slot

    def slots(self) -> Iterator[tuple[int, Slot]]:
        """The same with the claims among them."""
        for placed in self._reader.in_turn(range(1, self.head().slot + 1)):
            yield placed.number, placed.slot

    def before(self, generation_id: str) -> Iterator[Commit]:
        """The generations that were committed before that one, newest first.

        Raises:
            CommitLogError: a slot on the way is missing or garbled.
        """
        met = False
        for _, commit in self._newest_first():
            if met:
                yield commit
            met = met or commit.generation_id == generation_id

    def find(self, generation_id: str) -> tuple[int, Commit] | None:
        """The commit of that generation, searched from the newest slot backwards."""
        for number, commit in self._newest_first():
            if commit.generation_id == generation_id:
                return number, commit
        return None

    def _newest_first(self) -> Iterator[tuple[int, Commit]]:
        for placed in self._reader.in_turn(range(self.head().slot, 0, -1)):
            if isinstance(placed.slot, Commit):
                yield placed.number, placed.slot

    def _claimed_before(self, head: Head) -> Claimed:
        slot = head.slot - 1
        last = self._reader.read(slot).slot if slot else None
        before = Head(slot=slot, epoch=head.epoch - 1, commit=head.commit, last=last)
        return Claimed(slot=head.slot, epoch=head.epoch, head=before, store_id=self.store_id)

    def _slot_of(self, commit: Commit, head: Head) -> int | None:
        """Where the generation is committed already, if it is."""
        for number in range(head.slot, 0, -1):
            slot = self._reader.read(number).slot
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
        last = head.last  # of the attempt that claimed: every slot behind a claim is
        if last is None or (last.epoch, last.attempt_id) != (commit.epoch, commit.attempt_id):
            raise CommitLogError(
                f"epoch {commit.epoch} was not claimed by attempt {commit.attempt_id}: claim first"
            )

    # --- writing --------------------------------------------------------------------------------

    def _identify(self, attempt_id: str, *, now_unix_ms: int) -> None:
        """At its first claim a store is tried, and gets its identity."""
        store, found = self._store, self._reader.identity
        if found is not None and found.url == store.url:
            return
        check_promises(store, name=attempt_id, pause=self._pause)
        if found is None:
            identity = Identity(
                store_id=attempt_id,
                job_id=self.job_id,
                url=store.url,
                created_unix_ms=now_unix_ms,
            )
            self._reader.identified(write_identity(store, identity, pause=self._pause))

    def _keep(self, number: int) -> None:
        """A slot of ours that is found there may not last yet: who put it had no answer. Putting
        it again is refused, and makes what is seen durable."""
        name = PREFIX + slot_name(number)
        data = self._store.get(name)
        if data is None:
            raise CommitLogError(f"slot {name} has vanished")
        put_settled(self._store, name, data, pause=self._pause)
        write_mark(self._store, Mark(number, self._reader.read(number).digest))

    def _create(self, slot: Slot, head: Head) -> bool:
        """Create the slot behind the head; False if its place is taken."""
        data = linked(
            slot,
            behind=self._reader.read(head.slot) if head.slot else None,
            newest_commit=self._reader.newest_commit,
            store_id=self.store_id,
        )
        number = head.slot + 1
        ours = put_settled(self._store, PREFIX + slot_name(number), data, pause=self._pause)
        self._reader.created(number)
        if not ours:
            return False
        placed = open_slot(data, number)
        write_mark(self._store, Mark(number, placed.digest))
        return True
