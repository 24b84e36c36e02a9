"""Runs attempts of a job and a clean-up at one store, as ``specs/models/Commits.tla`` has them.

Every one stops before each of its calls to the store, and the choice says who goes on, who is dead
from there on, and what becomes of a put and of its answer.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from drainfsm.core.manifest import Claim, Commit, Entry
from drainfsm.core.notice import Cause
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import periodic_id
from drainfsm.errors import DrainfsmError, FencedError, StoreUnreachableError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.coordinator.saves import Written
from drainfsm.store.commits import CommitLog
from drainfsm.store.gc import GENERATIONS, remove, survey
from drainfsm.store.generations import MANIFEST, generation_prefix
from drainfsm.store.probe import PROBE
from drainfsm.store.requeues import read_requeue, restore_for
from drainfsm.store.retention import Holding, Retention, plan
from drainfsm.store.slots import PREFIX, open_slot, slot_numbers
from drainfsm.testing.stores import AmbiguousStore, MemoryStore, PutAnswer
from drainfsm_kit.interleave import Actor, Interleaving

JOB = "job"
ATTEMPTS = (1, 2, 3)
RANKS = (1, 2)
SAVES = 2
CLEANER = 0
STEPS_MAX = 400
NOTHING = (0, 0)
Recorded = dict[str, Any]
Generation = tuple[int, int]


class _Dead(BaseException):
    """The process is gone; nothing of it runs any more."""


class _Store(AmbiguousStore):
    """The store as one of them sees it. What a call does is told to the world."""

    def __init__(self, world: World, who: int, actor: Actor) -> None:
        super().__init__(world.memory, answer=self._becomes, before=self._stop)
        self._world, self._who, self._actor = world, who, actor
        self._absent = False
        """Nothing had the name when it was put last."""

    def _stop(self) -> None:
        self._actor.gate()
        if self._who in self._world.dead:
            raise _Dead

    def _becomes(self, name: str) -> PutAnswer:
        self._absent = name not in self._world.memory.objects
        if not _is_slot(name):
            return PutAnswer.TRUE
        self._world.sends(self._who, slot_numbers([name.removeprefix(PREFIX)])[0])
        return self._world.answer

    def put_if_absent(self, name: str, data: bytes) -> None:
        self._absent = False
        try:
            super().put_if_absent(name, data)
        finally:
            if self._absent and name in self._world.memory.objects:
                self._world.landed(self._who, name)

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        found = super().names(prefix, after=after)
        if prefix == PREFIX and after != PROBE:
            self._world.listed(self._who)
        return found

    def get(self, name: str) -> bytes | None:
        found = super().get(name)
        if _is_slot(name):
            self._world.settle(self._who)
        return found

    def delete(self, name: str) -> None:
        was_there = name in self._world.memory.objects
        super().delete(name)
        if was_there and name.startswith(GENERATIONS):
            self._world.deleted(name)

    def delete_tree(self, prefix: str) -> None:
        """Piece by piece, as a file system does it."""
        for name in self._world.memory.list(prefix):
            self.delete(prefix + name)


def _is_slot(name: str) -> bool:
    return name.startswith(PREFIX) and bool(slot_numbers([name.removeprefix(PREFIX)]))


class World:
    """One run. ``trace``: the model's actions that the code took, and what was there then."""

    def __init__(self, chance: random.Random) -> None:
        self.memory = MemoryStore()
        self.answer = PutAnswer.TRUE
        self.dead: set[int] = set()
        self.trace: list[Recorded] = []
        self._chance = chance
        self._stores: list[_Store] = []
        self._at = dict.fromkeys(ATTEMPTS, ("new", 0))
        """By attempt: as in the model, and the slot that its put is for."""

        self._listed: dict[int, int] = {}
        """By attempt: how long the trace was when it last listed the slots."""

        self._epochs = dict.fromkeys(ATTEMPTS, 0)
        self._newest = dict.fromkeys(ATTEMPTS, NOTHING)
        self._saving: dict[int, Generation] = {}
        self._reads = 0
        self._surveyed: dict[str, Any] = {"epoch": 0, "committed": frozenset()}
        self._at_first = self._after()

    # --- who runs -------------------------------------------------------------------------------

    def run(self) -> None:
        pieces: dict[str, Callable[[Actor], None]] = {
            str(number): self._attempt(number) for number in ATTEMPTS
        }
        pieces[str(CLEANER)] = self._clean
        with Interleaving(pieces) as interleaving:
            for _ in range(STEPS_MAX):
                if not (runnable := interleaving.runnable):
                    break
                self._land_some()
                self.answer = self._chance.choices(
                    [PutAnswer.TRUE, PutAnswer.LOST, PutAnswer.REFUSED, PutAnswer.LATE],
                    [6, 1, 1, 1],
                )[0]
                weights = [
                    1 if actor.name == str(CLEANER) else 4 // int(actor.name) + 1
                    for actor in runnable
                ]
                chosen = self._chance.choices(runnable, weights)[0]
                if self._chance.random() < 0.01:
                    self._dies(int(chosen.name))
                chosen.step()
            self.answer = PutAnswer.TRUE
            self.dead |= {CLEANER, *ATTEMPTS}
            ended = len(self.trace)
        del self.trace[ended:]
        for actor in interleaving.actors:
            if actor.error is not None and not isinstance(actor.error, _Dead):
                self._took(f"failed: {actor.error}", attempt=int(actor.name))

    def _dies(self, who: int) -> None:
        if who in self.dead:
            return
        self.dead.add(who)
        if who != CLEANER and self._at[who][0] not in ("new", "left"):
            self._took("Crash", attempt=who)

    def _land_some(self) -> None:
        for store in self._stores:
            if store.late and self._chance.random() < 0.2 and store.land(0):
                self._took("Land")
                self._took("SyncSlots")

    # --- an attempt -----------------------------------------------------------------------------

    def _attempt(self, who: int) -> Callable[[Actor], None]:
        def work(actor: Actor) -> None:
            actor.gate()
            store = _Store(self, who, actor)
            self._stores.append(store)
            log = CommitLog(store, job_id=JOB, pause=lambda _: None)
            try:
                claimed = log.claim(attempt_id=str(who), now_unix_ms=1)
            except StoreUnreachableError:
                return self._dies(who)
            restored = restore_for(store, log, claimed, now_unix_ms=1, node_count=1)
            named = None if restored is None else restored.generation_id
            self._newest[who] = _generation(named)
            self._took("CheckpointRestored", attempt=who)
            self._at[who] = ("running", 0)
            publisher = Publisher(
                store,
                log,
                job_id=JOB,
                epoch=claimed.epoch,
                attempt_id=str(who),
                settings=CheckpointSettings(),
                clock=Clock(),
                lock=nullcontext(),
            )
            for number in range(1, SAVES + 1):
                if not self._save(who, number, store, publisher):
                    return None
            return self._leave(who, claimed.epoch, publisher)

        return work

    def _save(self, who: int, number: int, store: _Store, publisher: Publisher) -> bool:
        """False: the attempt saves no more."""
        epoch = self._epochs[who]
        self._saving[who] = (epoch, number)
        self._took("SaveStarted", attempt=who)
        name = periodic_id(epoch=epoch, step=number, restart=0)
        store.create_tree(generation_prefix(name))
        for rank in RANKS:
            store.put_if_absent(f"{generation_prefix(name)}rank{rank}", b"x")
        written = Written(
            generation_id=name,
            step=number,
            entries=tuple(
                Entry(name=f"rank{rank}", size_bytes=1, checksum="sha256:00", rank=rank - 1)
                for rank in RANKS
            ),
            file_counts=dict.fromkeys(range(len(RANKS)), 1),
            durable_ms=1,
        )
        try:
            publisher.verify(written, world_size=len(RANKS))
            publisher.publish(written, world_size=len(RANKS), given_up=threading.Event())
        except FencedError:
            self._insert("SendCommit", who)
            self._at[who] = ("fenced", 0)
            return False
        except StoreUnreachableError:
            self._dies(who)
            return False
        return True

    def _leave(self, who: int, epoch: int, publisher: Publisher) -> None:
        publisher.close()
        record = RequeueRecord(
            job_id=JOB,
            epoch=epoch,
            cause=Cause.FINISHED,
            generation_id=None,
            manifest_digest=None,
            step=None,
            world_size=len(RANKS),
            capacity=Capacity(node_count=1),
            recorded_unix_ms=1,
        )
        try:
            publisher.record_requeue(record)
        except DrainfsmError:
            return

    # --- the clean-up ---------------------------------------------------------------------------

    def _clean(self, actor: Actor) -> None:
        actor.gate()
        store = _Store(self, CLEANER, actor)
        holding = survey(store, job_id=JOB)
        self._surveyed = _seen(holding)
        self._took("Surveyed")
        for removed in remove(store, plan(holding, Retention()), now_unix_ms=lambda: 1):
            assert not removed.error, removed.error

    # --- what a call to the store is in the model -----------------------------------------------

    def listed(self, who: int) -> None:
        if who == CLEANER:
            self._reads += 1
            if self._reads <= 2:
                self._took("ReadEpoch" if self._reads == 1 else "ReadCommits")
            return
        self.settle(who)
        self._listed[who] = len(self.trace)

    def sends(self, who: int, number: int) -> None:
        """A put of a slot. It was made up when the slots were listed last."""
        at, slot = self._at[who]
        if at == "new":
            self._insert("SendClaim", who)
            self._at[who] = ("claiming", number)
        elif at == "verified":
            self._insert("SendCommit", who)
            self._at[who] = ("publishing", number)
        else:
            assert slot == number, (at, slot, number)

    def landed(self, who: int, name: str) -> None:
        kind, _, rest = name.partition("/")
        if _is_slot(name):
            self._took("Land")
            self._took("SyncSlots")
            if self.answer is PutAnswer.TRUE:
                self.settle(who)
        elif kind == "requeue":
            epoch = int(rest.partition(".")[0])
            self._took("RequeueRecorded" if epoch == self._epochs[who] else "Derive", attempt=who)
            if epoch == self._epochs[who]:
                self._at[who] = ("left", 0)
            self._took("SyncRequeue", generation=(epoch, 0))
        elif kind == "generations" and name.endswith(MANIFEST):
            self._took("EntriesVerified", attempt=who)
            self._took("SyncManifest", attempt=who)
            self._at[who] = ("verified", 0)
        elif kind == "generations":
            for action in ("Write", "Sync", "Durable"):
                self._took(action, attempt=who, rank=int(name[-1]))

    def settle(self, who: int) -> None:
        """It has seen what became of its put, if anything did."""
        if who == CLEANER:
            return
        at, number = self._at[who]
        slots = self._slots()
        if at not in ("claiming", "publishing") or number > len(slots):
            return
        kind, by, epoch, generation = slots[number - 1]
        if at == "claiming":
            ours = kind == "claim" and by == who
            self._at[who] = ("claimed" if ours else "new", 0)
            self._epochs[who] = epoch if ours else 0
            self._took("SettleClaim", attempt=who)
        else:
            ours = generation == self._saving[who]
            self._at[who] = ("running" if ours else "verified", 0)
            self._newest[who] = generation if ours else self._newest[who]
            self._took("ManifestPublished", attempt=who)

    def deleted(self, name: str) -> None:
        _, generation, file = name.split("/")
        if file == MANIFEST:
            self._took("DeleteManifest", generation=_generation(generation))
        else:
            self._took("DeletePart", generation=_generation(generation), rank=int(file[-1]))

    # --- the trace ------------------------------------------------------------------------------

    def _slots(self) -> list[tuple[str, int, int, Generation]]:
        found = []
        for number in slot_numbers(self.memory.names(PREFIX)):
            data = self.memory.objects[f"{PREFIX}{number:08d}.json"]
            slot = open_slot(data, number).slot
            if isinstance(slot, Claim):
                found.append(("claim", int(slot.attempt_id), slot.epoch, NOTHING))
            elif isinstance(slot, Commit):
                generation = _generation(slot.generation_id)
                found.append(("commit", int(slot.attempt_id), slot.epoch, generation))
        return found

    def _insert(self, action: str, who: int) -> None:
        """A step that was taken when the slots were last listed, and showed only now."""
        place = self._listed[who]
        after = self.trace[place - 1]["after"] if place else self._at_first
        self.trace.insert(place, _step(action, after, attempt=who))
        self._listed = {one: at + (at > place) for one, at in self._listed.items()}

    def _took(self, action: str, **named: Any) -> None:
        self.trace.append(_step(action, self._after(), **named))

    def _after(self) -> dict[str, Any]:
        files = [name.split("/") for name in self.memory.objects if name.startswith(GENERATIONS)]
        requeue = {
            (epoch, _generation(record.generation_id))
            for epoch in ATTEMPTS
            if (record := read_requeue(self.memory, epoch=epoch)) is not None
        }
        return {
            "slots": self._slots(),
            "parts": {(*_generation(g), int(f[-1])) for _, g, f in files if f.startswith("rank")},
            "manifests": {_generation(g) for _, g, f in files if f == MANIFEST},
            "requeue": requeue,
            "epochs": [self._epochs[one] for one in ATTEMPTS],
            "newest": [self._newest[one] for one in ATTEMPTS],
            "surveyed": self._surveyed,
        }


def _step(
    action: str,
    after: dict[str, Any],
    *,
    attempt: int = 0,
    rank: int = 0,
    generation: Generation = NOTHING,
) -> Recorded:
    return {
        "action": action,
        "attempt": attempt,
        "rank": rank,
        "generation": generation,
        "after": after,
    }


def _generation(name: str | None) -> Generation:
    """``e000001-s000000000002-p``: the second save of epoch 1."""
    if name is None:
        return NOTHING
    epoch, step, _ = name.split("-")
    return int(epoch[1:]), int(step[1:])


def _seen(holding: Holding) -> dict[str, Any]:
    return {
        "epoch": holding.epoch,
        "committed": {_generation(commit.generation_id) for commit in holding.commits},
    }


def walk(seed: int) -> list[Recorded]:
    """The trace of one run."""
    world = World(random.Random(seed))
    world.run()
    return world.trace
