"""The simulated checkpoint store: slow, hung, away, with answers that never come."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from drainfsm.core.manifest import Claim, Entry
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import DrainfsmError, StoreUnreachableError
from drainfsm.store import PosixStore
from drainfsm.store.base import Ranges
from drainfsm.store.checksums import new_hasher
from drainfsm.store.generations import generation_prefix, read_manifest
from drainfsm.store.slots import PREFIX, open_slot, slot_name, slot_numbers
from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.fibers import Fibers, Resume
from drainfsm_kit.simulator.files import FileSystem
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

LINK_MUTE = 0.3
"""Part of the links of a server whose answers are lost that are said to be there already."""

CHECKSUM = "xxh3_128"
T = TypeVar("T")


class StoreServer:
    """What everybody shares: the real store on a file system, with requests that go astray."""

    def __init__(self, files: FileSystem, timeline: Timeline, chance: Chance, tally: Tally) -> None:
        self.files = files
        self.root = files.top / "store"
        self.posix = PosixStore(self.root, link=self.link)
        """As the server itself sees it."""

        self.posix.create()

        self.faults = Windows(timeline)
        """``away``, ``hung``, ``slow``, ``mute`` (done, no answer), ``late``, ``full``,
        ``lies``, ``stale`` (an old list), ``garbled`` (a slot is read half written)."""

        self.wrong: list[str] = []
        """Rules that were broken here."""

        self._writers: dict[str, str] = {}
        self._promised: dict[str, bytes] = {}
        """What somebody was told is there for good, by name."""

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
        """For all ranks of one incarnation together: a generation is used once."""
        if generation not in self._writers:
            self._writers[generation] = incarnation
            self.posix.create_tree(generation_prefix(generation))
        return self._writers[generation] == incarnation

    def write(self, generation: str, rank: int, *, size_bytes: int, step: int) -> Entry:
        """A rank's whole file. A store that lies loses it, and says that it is durable."""
        name = f"rank-{rank:05d}.distcp"
        data = f"rank {rank} at step {step}\n".encode().ljust(size_bytes, b".")
        whole = generation_prefix(generation) + name
        if self.faults.active("lies") is None:
            try:
                with self.posix.writer(whole) as stream:
                    stream.write(data)
            except StoreUnreachableError:
                self._broken(f"I3: {whole} was written twice")
            self._promised[whole] = data
        else:
            self.tally.hit("file_lost")
        return Entry(name=name, size_bytes=size_bytes, checksum=_checksum(data), rank=rank)

    def restore(self, target: RestoreTarget) -> str:
        """A rank loads its part. Why it refuses to; empty: it does not."""
        wrong = self.incomplete(target.generation_id, target.manifest_digest, target.step)
        if wrong:
            self._broken(f"I8: restored {target.generation_id}: {wrong}")
        return wrong

    def incomplete(self, generation: str, digest: str, step: int) -> str:
        """What a committed generation lacks; empty: nothing."""
        try:
            manifest = read_manifest(self.posix, generation_id=generation, digest=digest)
        except DrainfsmError as error:
            return str(error)
        if manifest.step != step:
            return f"its manifest is of step {manifest.step}, not {step}"
        if {entry.rank for entry in manifest.entries} != set(range(manifest.world_size)):
            return "its manifest lacks a rank"
        for entry in manifest.entries:
            data = self.posix.get(generation_prefix(generation) + entry.name)
            if data is None or (len(data), _checksum(data)) != (entry.size_bytes, entry.checksum):
                return f"file {entry.name} is not as the manifest says: {data!r}"
            if not data.startswith(f"rank {entry.rank} at step {step}\n".encode()):
                return f"file {entry.name} was not written at step {step}: {data[:40]!r}"
        return ""

    def _broken(self, rule: str) -> None:
        """Unless its disk has lied: then it may have forgotten anything."""
        if not self.files.betrayed:
            self.wrong.append(rule)

    # --- what clients ask -----------------------------------------------------------------------

    def link(self, source: Path, target: Path) -> None:
        """``os.link``, by which slots come to be."""
        os.link(source, target)
        name = target.relative_to(self.root).as_posix()
        for number in slot_numbers([name.removeprefix(PREFIX)]):
            self._check_slot(name, number, target.read_bytes())
        if self.faults.active("mute") is not None and self._chance.random() < LINK_MUTE:
            raise FileExistsError(errno.EEXIST, "the client asked twice")  # as NFS may say

    def promise(self, name: str, data: bytes) -> None:
        """Somebody is told that this is there for good."""
        self._promised[name] = data

    def lose_power(self) -> None:
        """It comes back with what was synced, and perhaps with more."""
        self.files.lose_power()
        self.tally.hit("store_power")
        slots = {}
        for number in slot_numbers(self.posix.names(PREFIX)):
            with contextlib.suppress(DrainfsmError):
                name = f"{PREFIX}{slot_name(number)}"
                slots[number] = open_slot(self.posix.get(name) or b"", number).slot
        self.epoch, self.newest_step, self.committed = 0, -1, set()
        for _, slot in sorted(slots.items()):
            if isinstance(slot, Claim):
                self.epoch, self.newest_step = slot.epoch, -1
            else:
                self.committed.add(slot.generation_id)
                self.newest_step = slot.step
        if not self.files.betrayed:
            for name, data in self._promised.items():
                if (found := self.posix.get(name)) != data:
                    what = "lost" if found is None else "changed"
                    self._broken(f"I5: {name} was acknowledged, and is {what}")

    def forget(self, prefix: str) -> None:
        """Somebody removes it, or puts something else there."""
        for name in [name for name in self._promised if name.startswith(prefix)]:
            del self._promised[name]

    def _check_slot(self, name: str, number: int, data: bytes) -> None:
        """I7 and I5, in the order in which the store made the slots exist."""
        slot = open_slot(data, number).slot
        if isinstance(slot, Claim):
            if slot.epoch != self.epoch + 1:
                self._broken(f"I7: {name} claims epoch {slot.epoch} after {self.epoch}")
            self.epoch, self.newest_step = slot.epoch, -1
            return
        if slot.epoch != self.epoch:
            self._broken(
                f"I7: epoch {slot.epoch} committed in {name} after the claim of {self.epoch}"
            )
        if slot.generation_id in self.committed:
            self._broken(f"I5: {slot.generation_id} is committed twice")
        self.committed.add(slot.generation_id)
        self.commits_ms.append(self._timeline.now_ms)
        if slot.step < self.newest_step and not self.tally.faults["store_late"]:
            self._broken(f"I8: {name} commits step {slot.step} after {self.newest_step}")
        self.newest_step = slot.step
        if wrong := self.incomplete(slot.generation_id, slot.manifest_digest, slot.step):
            self._broken(f"I5: {name} commits {slot.generation_id}: {wrong}")

    def get_for(self, machine: str, name: str) -> bytes | None:
        """As a client of that machine sees it."""
        data = self.posix.get(name)
        garbled = self.faults.active("garbled", machine) is not None
        if data is None or not garbled or not slot_numbers([name.removeprefix(PREFIX)]):
            return data
        self.tally.hit("store_garbled")
        return data[: self._chance.randint(0, len(data) - 1)]

    def names_for(self, machine: str, prefix: str, *, after: str) -> Sequence[str]:
        """The same of a list: the newest name may be missing."""
        found = self.posix.names(prefix, after=after)
        if not found or self.faults.active("stale", machine) is None:
            return found
        self.tally.hit("store_stale")
        return found[:-1]

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
            self._timeline.after(self._chance.randint(*LATE_US), request.perform, self.posix)
            self._timeline.after(REFUSED_US, request.fail, "no answer yet")
        else:
            self._do(request)

    def _do(self, request: Request) -> None:
        """The client does it step by step; what a dead or stopped one has sent is done at once."""
        if request.process.dead or request.process.stopped:
            request.perform(self.posix)
            self.answer(request)
        else:
            request.go_on()

    def answer(self, request: Request) -> None:
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


def _checksum(data: bytes) -> str:
    """As ``checksum_of``, without its buffer of many megabytes."""
    hasher = new_hasher(CHECKSUM)
    hasher.update(memoryview(data))
    return f"{CHECKSUM}:{hasher.hexdigest()}"


class Request:
    """One call of a client, on its way there and back."""

    def __init__(
        self,
        process: Process,
        action: Callable[[PosixStore], object],
        resume: Resume,
        *,
        writes: bool,
    ) -> None:
        self.process = process
        self.machine = process.machine.name
        self.writes = writes
        self.result: object = None
        self.error: Exception | None = None
        self.admitted = False
        """The client does it itself."""

        self.resume = resume
        self._action = action
        self._answered = False

    def perform(self, store: PosixStore) -> None:
        try:
            self.result = self._action(store)
        except DrainfsmError as error:
            self.error = error

    def go_on(self) -> None:
        self.admitted = True
        self.resume()

    def answer(self) -> None:
        if not self._answered:
            self._answered = True
            self.resume()

    def fail(self, reason: str) -> None:
        if not self._answered:
            self.error = StoreUnreachableError(reason)
            self.answer()


class StoreClient:
    """An ``ObjectStore`` for the blocking code of one process: the real one, some way off."""

    def __init__(
        self, server: StoreServer, process: Process, timeline: Timeline, fibers: Fibers
    ) -> None:
        self.url = URL
        self._server = server
        self._files = PosixStore(server.root, link=server.link)
        self._process = process
        self._timeline = timeline
        self._fibers = fibers

    def _ask(self, action: Callable[[PosixStore], T], *, writes: bool = False) -> T:
        requests: list[Request] = []

        def arrange(resume: Resume) -> None:
            request = Request(self._process, action, resume, writes=writes)
            requests.append(request)
            travel_us = self._server.travel_us(request.machine)
            self._timeline.after(travel_us, self._server.receive, request)

        def go_back(resume: Resume) -> None:
            request.resume = resume
            self._server.answer(request)

        self._fibers.block(arrange)
        request = requests[0]
        if request.admitted:
            request.perform(self._files)
            self._fibers.block(go_back)
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]

    def create(self, *, parents: bool = False) -> None:
        """It is there."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        self._ask(lambda store: store.put_if_absent(name, data), writes=True)
        self._server.promise(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._server.forget(name)
        self._ask(lambda store: store.put(name, data), writes=True)

    def get(self, name: str) -> bytes | None:
        machine = self._process.machine.name
        return self._ask(lambda store: self._server.get_for(machine, name))

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        machine = self._process.machine.name
        return self._ask(lambda store: [self._server.get_for(machine, name) for name in names])

    def list(self, prefix: str) -> dict[str, int]:
        return self._ask(lambda store: store.list(prefix))

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        machine = self._process.machine.name
        return self._ask(lambda store: self._server.names_for(machine, prefix, after=after))

    def delete(self, name: str) -> None:
        self._server.forget(name)
        self._ask(lambda store: store.delete(name), writes=True)

    def delete_tree(self, prefix: str) -> None:
        self._server.forget(prefix)
        self._ask(lambda store: store.delete_tree(prefix), writes=True)

    def create_tree(self, prefix: str) -> None:
        self._ask(lambda store: store.create_tree(prefix), writes=True)

    def writer(self, name: str, *, size_bytes: int = 0) -> AbstractContextManager[BinaryIO]:
        raise AssertionError("ranks write their files by themselves")

    def reader(self, name: str) -> AbstractContextManager[BinaryIO]:
        raise AssertionError("ranks read their files by themselves")

    def ranges(self, name: str, *, size_bytes: int = 0) -> AbstractContextManager[Ranges]:
        raise AssertionError("ranks read their files by themselves")

    def pause(self, seconds: float) -> None:
        """Instead of ``time.sleep``."""
        self._fibers.block(lambda resume: self._timeline.after(round(seconds * 1_000_000), resume))
