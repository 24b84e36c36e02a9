"""The simulated checkpoint store: slow, hung, away, with answers that never come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import msgspec

from drainfsm.core.manifest import Claim, Entry
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import DrainfsmError, StoreUnreachableError
from drainfsm.store.generations import generation_prefix, read_manifest
from drainfsm.store.slots import PREFIX, open_slot, slot_numbers
from drainfsm.testing.stores import MemoryStore
from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.fibers import Fibers, Resume
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline
from drainfsm_kit.simulator.windows import Windows

if TYPE_CHECKING:
    from drainfsm_kit.simulator.process import Process

URL = "memory://simulated"
REQUEST_US = (500, 8_000)
"""One way."""

REFUSED_US = 200_000
"""Until a client knows that the store is away."""

LATE_US = (50_000, 8_000_000)
"""Until a put that got no answer takes effect."""

T = TypeVar("T")


class Blob(msgspec.Struct, frozen=True):
    """A rank's file: what it is worth knowing of its bytes."""

    size_bytes: int
    checksum: str
    step: int
    """At which the rank stood when it wrote the file."""


class StoreServer(MemoryStore):
    """What everybody shares."""

    def __init__(self, timeline: Timeline, chance: Chance, tally: Tally) -> None:
        super().__init__(URL)
        self.blobs: dict[str, Blob] = {}
        """By whole name. They are listed beside the small objects."""

        self.faults = Windows(timeline)
        """``away``, ``hung``, ``slow``, ``mute`` (done, no answer), ``late``, ``full``,
        ``lies``, ``stale`` (an old list), ``garbled`` (a slot is read half written)."""

        self.wrong: list[str] = []
        """Rules that were broken here."""

        self._writers: dict[str, str] = {}
        self.committed: set[str] = set()
        self.commits_ms: list[int] = []
        """When each was made, in true time."""

        self.newest_step = -1
        """Of the epoch's commits."""

        self.epoch = 0
        """Of the newest claim."""

        self.request_count = 0
        self._timeline = timeline
        self._chance = chance.stream("store")
        self.tally = tally

    # --- what ranks do --------------------------------------------------------------------------

    def refuses(self, machine: str) -> str:
        """Why a write fails now; empty: it does not."""
        for fault, reason in (("full", "No space left on device"), ("away", "no answer")):
            if self.faults.active(fault, machine) is not None:
                self.tally.hit(f"store_{fault}")
                return reason
        return ""

    def begin(self, generation: str, incarnation: str) -> bool:
        """``create_tree``, for all ranks of one incarnation together: a generation is used once."""
        return self._writers.setdefault(generation, incarnation) == incarnation

    def write(self, generation: str, rank: int, *, size_bytes: int, step: int) -> Entry:
        """A rank's whole file. A store that lies loses it, and says that it is durable."""
        name = f"rank-{rank:05d}.distcp"
        entry = Entry(name=name, size_bytes=size_bytes, checksum=f"xxh3_128:{rank:032x}", rank=rank)
        whole = generation_prefix(generation) + name
        if whole in self.blobs:
            self.wrong.append(f"I3: {whole} was written twice")
        if self.faults.active("lies") is None:
            self.blobs[whole] = Blob(size_bytes, entry.checksum, step)
        else:
            self.tally.hit("file_lost")
        return entry

    def restore(self, target: RestoreTarget) -> None:
        """A rank loads its part: what it is told must be there, whole, and committed."""
        if wrong := self.incomplete(target.generation_id, target.manifest_digest, target.step):
            self.wrong.append(f"I8: restored {target.generation_id}: {wrong}")

    def incomplete(self, generation: str, digest: str, step: int) -> str:
        """What a committed generation lacks; empty: nothing."""
        try:
            manifest = read_manifest(self, generation_id=generation, digest=digest)
        except DrainfsmError as error:
            return str(error)
        if manifest.step != step:
            return f"its manifest is of step {manifest.step}, not {step}"
        if {entry.rank for entry in manifest.entries} != set(range(manifest.world_size)):
            return "its manifest lacks a rank"
        for entry in manifest.entries:
            blob = self.blobs.get(generation_prefix(generation) + entry.name)
            if blob is None or (blob.size_bytes, blob.checksum) != (
                entry.size_bytes,
                entry.checksum,
            ):
                return f"file {entry.name} is not as the manifest says: {blob}"
            if blob.step != step:
                return f"file {entry.name} was written at step {blob.step}, not {step}"
        return ""

    # --- what clients ask -----------------------------------------------------------------------

    def put_if_absent(self, name: str, data: bytes) -> None:
        super().put_if_absent(name, data)
        for number in slot_numbers([name.removeprefix(PREFIX)]):
            self._check_slot(name, number, data)

    def _check_slot(self, name: str, number: int, data: bytes) -> None:
        """I7 and I5, in the order in which the store made the slots exist."""
        slot = open_slot(data, number).slot
        if isinstance(slot, Claim):
            if slot.epoch != self.epoch + 1:
                self.wrong.append(f"I7: {name} claims epoch {slot.epoch} after {self.epoch}")
            self.epoch, self.newest_step = slot.epoch, -1
            return
        if slot.epoch != self.epoch:
            self.wrong.append(
                f"I7: epoch {slot.epoch} committed in {name} after the claim of {self.epoch}"
            )
        if slot.generation_id in self.committed:
            self.wrong.append(f"I5: {slot.generation_id} is committed twice")
        self.committed.add(slot.generation_id)
        self.commits_ms.append(self._timeline.now_ms)
        if slot.step < self.newest_step and not self.tally.faults["store_late"]:
            self.wrong.append(f"I8: {name} commits step {slot.step} after {self.newest_step}")
        self.newest_step = slot.step
        if wrong := self.incomplete(slot.generation_id, slot.manifest_digest, slot.step):
            self.wrong.append(f"I5: {name} commits {slot.generation_id}: {wrong}")

    def get_for(self, machine: str, name: str) -> bytes | None:
        """As a client of that machine sees it."""
        data = self.get(name)
        garbled = self.faults.active("garbled", machine) is not None
        if data is None or not garbled or not slot_numbers([name.removeprefix(PREFIX)]):
            return data
        self.tally.hit("store_garbled")
        return data[: self._chance.randint(0, len(data) - 1)]

    def names_for(self, machine: str, prefix: str, *, after: str) -> Sequence[str]:
        """The same of a list: the newest name may be missing."""
        found = self.names(prefix, after=after)
        if not found or self.faults.active("stale", machine) is None:
            return found
        self.tally.hit("store_stale")
        return found[:-1]

    def list(self, prefix: str) -> dict[str, int]:
        found = super().list(prefix)
        for name, blob in self.blobs.items():
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = blob.size_bytes
        return found

    def receive(self, request: Request) -> None:
        """A request arrives. It was sent; whether its sender lives does not matter any more."""
        self.request_count += 1
        if (hung := self.faults.active("hung", request.machine)) is not None:
            self.tally.hit("store_hung")
            self._timeline.at(hung.until_us + self._chance.randint(*REQUEST_US), self._do, request)
        elif self.faults.active("away", request.machine) is not None:
            self.tally.hit("store_away")
            self._timeline.after(REFUSED_US, request.fail, "connection refused")
        elif request.writes and self.faults.active("late", request.machine) is not None:
            self.tally.hit("store_late")
            self._timeline.after(self._chance.randint(*LATE_US), request.perform)
            self._timeline.after(REFUSED_US, request.fail, "no answer yet")
        else:
            self._do(request)

    def _do(self, request: Request) -> None:
        request.perform()
        if request.writes and self.faults.active("mute", request.machine) is not None:
            self.tally.hit("store_mute")
            self._timeline.after(REFUSED_US, request.fail, "done, but the answer is lost")
        else:
            self._timeline.after(self.travel_us(request.machine), request.answer)

    def travel_us(self, machine: str) -> int:
        travel_us = self._chance.randint(*REQUEST_US)
        if (slow := self.faults.active("slow", machine)) is not None:
            self.tally.hit("store_slow")
            travel_us += slow.amount * US_PER_MS
        return travel_us


class Request:
    """One call of a client, on its way there and back."""

    def __init__(self, machine: str, action: Callable[[], object], resume: Resume, *, writes: bool):
        self.machine = machine
        self.writes = writes
        self.result: object = None
        self.error: Exception | None = None
        self._action = action
        self._resume = resume
        self._answered = False

    def perform(self) -> None:
        try:
            self.result = self._action()
        except DrainfsmError as error:
            self.error = error

    def answer(self) -> None:
        if not self._answered:
            self._answered = True
            self._resume()

    def fail(self, reason: str) -> None:
        if not self._answered:
            self.error = StoreUnreachableError(reason)
            self.answer()


class StoreClient:
    """An ``ObjectStore`` for the blocking code of one process."""

    def __init__(
        self, server: StoreServer, process: Process, timeline: Timeline, fibers: Fibers
    ) -> None:
        self.url = server.url
        self._server = server
        self._process = process
        self._timeline = timeline
        self._fibers = fibers

    def _ask(self, action: Callable[[], T], *, writes: bool = False) -> T:
        requests: list[Request] = []

        def arrange(resume: Resume) -> None:
            machine = self._process.machine.name
            request = Request(machine, action, resume, writes=writes)
            requests.append(request)
            self._timeline.after(self._server.travel_us(machine), self._server.receive, request)

        self._fibers.block(arrange)
        request = requests[0]
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]

    def create(self, *, parents: bool = False) -> None:
        """It is there."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._server.put_if_absent(name, data), writes=True)

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._server.put(name, data), writes=True)

    def get(self, name: str) -> bytes | None:
        return self._ask(lambda: self._server.get_for(self._process.machine.name, name))

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        machine = self._process.machine.name
        return self._ask(lambda: [self._server.get_for(machine, name) for name in names])

    def list(self, prefix: str) -> dict[str, int]:
        return self._ask(lambda: self._server.list(prefix))

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        machine = self._process.machine.name
        return self._ask(lambda: self._server.names_for(machine, prefix, after=after))

    def delete(self, name: str) -> None:
        self._ask(lambda: self._server.delete(name), writes=True)

    def delete_tree(self, prefix: str) -> None:
        self._ask(lambda: self._server.delete_tree(prefix), writes=True)

    def create_tree(self, prefix: str) -> None:
        self._ask(lambda: self._server.create_tree(prefix), writes=True)

    def writer(self, name: str) -> AbstractContextManager[BinaryIO]:
        raise AssertionError("ranks write their files by themselves")

    def reader(self, name: str) -> AbstractContextManager[BinaryIO]:
        raise AssertionError("ranks read their files by themselves")

    def pause(self, seconds: float) -> None:
        """Instead of ``time.sleep``."""
        self._fibers.block(lambda resume: self._timeline.after(round(seconds * 1_000_000), resume))
