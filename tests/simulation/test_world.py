"""The simulated world itself: time, processes, threads, network, disk and store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from drainfsm.core import events as e
from drainfsm.core.records import Record
from drainfsm.errors import JournalLockedError, StoreUnreachableError
from drainfsm.log.journal import Journal
from drainfsm.runtime.threads import in_thread
from drainfsm_kit.simulator.fibers import FiberLock
from drainfsm_kit.simulator.plan import JOB, Happening, Plan
from drainfsm_kit.simulator.process import Process
from drainfsm_kit.simulator.seeds import plan_of
from drainfsm_kit.simulator.storage import StoreClient
from drainfsm_kit.simulator.timeline import US_PER_S
from drainfsm_kit.simulator.universe import Universe

HOUR_S = 3_600
Main = Callable[[], Coroutine[Any, Any, int]]


class Stage:
    """Two machines with a process each, called ``a`` and ``b``."""

    def __init__(self) -> None:
        self.universe = Universe(Plan(seed=1, world=plan_of(1).world, events=()))
        disk = self.universe.new_disk()
        self.machines = [self.universe.new_machine(name, disk) for name in "ab"]
        self.a, self.b = (self.universe.new_process(m.name, m) for m in self.machines)
        self.told: list[object] = []

    def run(self, *, until_s: float = 10 * HOUR_S) -> list[object]:
        until_us = round(until_s * US_PER_S)
        self.universe.timeline.run(until_us=until_us, over=lambda: False)
        return self.told

    def store(self, process: Process) -> StoreClient:
        universe = self.universe
        return StoreClient(universe.store, process, universe.timeline, universe.fibers)


@pytest.fixture
def stage() -> Any:
    stage = Stage()
    yield stage
    stage.universe.dispose()


def test_time_jumps_and_things_happen_in_order(stage: Stage) -> None:
    async def sleeper(name: str, seconds: float) -> int:
        await asyncio.sleep(seconds)
        stage.told.append((name, asyncio.get_running_loop().time()))
        return 0

    stage.a.start(sleeper("a", 2 * HOUR_S))
    stage.b.start(sleeper("b", HOUR_S))
    assert stage.run() == [("b", HOUR_S), ("a", 2 * HOUR_S)]
    assert (stage.a.exit_code, stage.a.ended_us) == (0, 2 * HOUR_S * US_PER_S)


def test_a_killed_process_runs_no_finally(stage: Stage) -> None:
    async def main() -> int:
        try:
            await asyncio.sleep(HOUR_S)
        finally:
            stage.told.append("finally")
        return 0

    stage.a.start(main())
    stage.run(until_s=1)
    stage.a.kill()
    assert stage.run() == []
    assert stage.a.exit_code == 137


def test_a_stopped_process_sleeps_and_then_takes_what_came_before_its_timers(stage: Stage) -> None:
    async def main() -> int:
        asyncio.get_running_loop().call_later(2, stage.told.append, "timer")
        await asyncio.sleep(5)
        return 0

    stage.a.start(main())
    stage.run(until_s=1)
    stage.a.stop()
    stage.run(until_s=3)
    stage.a.call_soon(stage.told.append, "message")
    assert stage.run(until_s=4) == []
    stage.a.resume()
    assert stage.run() == ["message", "timer"]


def test_an_error_that_nobody_handles_is_noted(stage: Stage) -> None:
    async def main() -> int:
        raise RuntimeError("oh")

    stage.a.start(main())
    stage.run()
    assert stage.a.bugs == ["a crashed: RuntimeError('oh')"]
    assert stage.a.exit_code == 1


# --- threads and the store ----------------------------------------------------------------------


def test_blocking_calls_interleave_at_every_request(stage: Stage) -> None:
    def work(name: str, process: Process) -> None:
        store = stage.store(process)
        for number in range(3):
            store.put(f"{name}/{number}", b"")
            stage.told.append(name)

    async def main(name: str, process: Process) -> int:
        await in_thread(name, lambda: work(name, process))
        return 0

    stage.a.start(main("a", stage.a))
    stage.b.start(main("b", stage.b))
    told = stage.run()
    assert sorted(map(str, told)) == ["a"] * 3 + ["b"] * 3
    assert told not in ([*"aaabbb"], [*"bbbaaa"])


def test_what_a_killed_process_has_asked_of_the_store_is_done_all_the_same(stage: Stage) -> None:
    def work() -> None:
        stage.store(stage.a).put("asked", b"")
        stage.told.append("answered")

    async def main() -> int:
        await in_thread("put", work)
        return 0

    stage.a.start(main())
    stage.run(until_s=0.000_1)
    stage.a.kill()
    assert stage.run() == []
    assert stage.universe.store.posix.get("asked") == b""


def test_an_answer_that_is_lost_is_an_error_although_it_was_done(stage: Stage) -> None:
    stage.universe.store.faults.add("mute", for_ms=1_000)

    async def main() -> int:
        with pytest.raises(StoreUnreachableError, match="the answer is lost"):
            await in_thread("put", lambda: stage.store(stage.a).put_if_absent("name", b"x"))
        return 0

    stage.a.start(main())
    stage.run()
    assert stage.a.exit_code == 0
    assert stage.universe.store.posix.get("name") == b"x"
    assert stage.universe.tally.faults["store_mute"] == 1


def test_a_lock_keeps_blocking_calls_apart(stage: Stage) -> None:
    lock = FiberLock(stage.universe.fibers)

    def work(name: str) -> None:
        with lock:
            for _ in range(2):
                stage.store(stage.a).get("name")
                stage.told.append(name)

    async def main() -> int:
        await asyncio.gather(*(in_thread(name, partial(work, name)) for name in "xyz"))
        return 0

    stage.a.start(main())
    assert stage.run() == [*"xxyyzz"]


# --- the network --------------------------------------------------------------------------------


async def read_all(stage: Stage, reader: asyncio.StreamReader) -> None:
    try:
        while data := await reader.read(100):
            stage.told.append(data)
        stage.told.append("end")
    except ConnectionResetError:
        stage.told.append("reset")


def connected(
    stage: Stage, client: Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]
) -> None:
    """``b`` reads; ``a`` connects and does as it is told."""

    async def listen() -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_all(stage, reader)
            writer.close()

        address: Any = "b:1"
        await asyncio.start_server(serve, sock=address)
        await asyncio.sleep(HOUR_S)
        return 0

    async def connect() -> int:
        await asyncio.sleep(0.1)
        _, writer = await asyncio.open_connection("b", 1)
        await client(writer)
        return 0

    stage.b.start(listen())
    stage.a.start(connect())


def test_silence_holds_bytes_back_and_delivers_them_in_order(stage: Stage) -> None:
    async def client(writer: asyncio.StreamWriter) -> None:
        writer.write(b"one")
        await asyncio.sleep(1)
        stage.universe.network.silence("a", "b", for_ms=5_000)
        for word in (b"two", b"three"):
            writer.write(word)
            await asyncio.sleep(0.5)
        stage.told.append("silent")
        await asyncio.sleep(10)
        writer.close()

    connected(stage, client)
    assert stage.run(until_s=60) == [b"one", "silent", b"twothree", "end"]
    assert stage.universe.tally.faults["silence"] == 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [("kill", [b"one", "end"]), ("power off", [b"one"]), ("cut", [b"one", "reset"])],
)
def test_the_other_end_sees_what_tcp_shows(stage: Stage, fault: str, told: list[object]) -> None:
    async def client(writer: asyncio.StreamWriter) -> None:
        writer.write(b"one")
        await asyncio.sleep(HOUR_S)

    connected(stage, client)
    stage.run(until_s=1)
    if fault == "cut":
        assert stage.universe.network.cut(stage.a) == 1
    else:
        stage.machines[0].powered = fault != "power off"
        stage.a.kill()
    assert stage.run(until_s=60) == told


# --- the disk -----------------------------------------------------------------------------------


def record(epoch: int) -> Record:
    facts = (e.HealthyStepReached(step=1),)
    return Record(id="r", job_id=JOB, epoch=epoch, follows=0, at_unix_ms=1, events=facts, before="")


def appended(stage: Stage, *, until_s: float) -> Journal:
    """``a`` opens a journal and appends to it, until then."""
    disk = stage.machines[0].disk
    opened: list[Journal] = []

    def work() -> None:
        opened.append(disk.open_journal(epoch=1))
        opened[0].append(record(1))
        stage.told.append("appended")

    async def main() -> int:
        await in_thread("journal", work)
        await asyncio.sleep(HOUR_S)
        return 0

    stage.a.start(main())
    stage.run(until_s=until_s)
    return opened[0]


def test_a_sync_takes_its_time_and_keeps_what_was_written(stage: Stage) -> None:
    journal = appended(stage, until_s=5)
    assert stage.told == ["appended"]
    disk = stage.machines[0].disk
    disk.files.lose_power()
    assert list(disk.records(1)) == journal.records == [record(1)]
    assert disk.forgotten(1) == ""


def test_a_power_loss_takes_what_was_not_synced(stage: Stage) -> None:
    """Any part of it, and what is left is the same each time."""
    fs = stage.universe.files.mount("other", kind="journal")
    left = []
    for number in range(40):
        path = fs.top / f"{number}"
        path.write_bytes(b"synced")
        for target in (path, fs.top):
            fd = os.open(target, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        with path.open("ab") as file:
            file.write(b" and not")
    (fs.top / "unnamed").write_bytes(b"x")
    fs.lose_power()
    for number in range(40):
        left.append((fs.top / f"{number}").read_bytes())
    assert all(data.startswith(b"synced") for data in left)
    assert {len(data) for data in left} > {len(b"synced"), len(b"synced and not")}
    assert not fs.betrayed


def test_a_disk_that_lies_forgets_what_it_had_acknowledged(stage: Stage) -> None:
    disk = stage.machines[0].disk
    disk.faults.add("lies", for_ms=HOUR_S * 1_000)
    journal = appended(stage, until_s=5)
    for _ in range(20):
        disk.files.lose_power()
    assert disk.files.betrayed
    assert disk.forgotten(1) == "1 records were acknowledged, 0 are there"
    assert list(disk.records(1)) == journal.records, "what was acknowledged is known nevertheless"


def test_a_full_disk_refuses_and_is_rolled_back(stage: Stage) -> None:
    journal = appended(stage, until_s=5)
    disk = stage.machines[0].disk
    disk.faults.add("full", for_ms=HOUR_S * 1_000)
    before = journal.path.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        journal.write(b"frame")
    assert journal.path.read_bytes() == before


def test_a_lock_ends_with_its_process(stage: Stage) -> None:
    appended(stage, until_s=5)
    stage.a.stop()
    with pytest.raises(JournalLockedError):
        stage.machines[0].disk.open_journal(epoch=1)
    stage.a.kill()
    stage.machines[0].disk.open_journal(epoch=1).close()


def test_a_damaged_journal_is_told_from_what_was_acknowledged(stage: Stage) -> None:
    journal = appended(stage, until_s=5)
    disk = stage.machines[0].disk
    assert disk.damage(epoch=1, at=0.9)
    assert list(disk.records(1)) == journal.records
    assert disk.forgotten(1) != ""
    assert not disk.damage(epoch=2, at=0.5)


def test_the_power_fails_in_the_middle_of_a_put(stage: Stage) -> None:
    """Whoever was in it is told; what was acknowledged before is there."""
    store_server, told = stage.universe.store, stage.told

    def work() -> None:
        store = stage.store(stage.a)
        store.put_if_absent("commits/first", b"1")
        told.append("first")
        try:
            store.put_if_absent("commits/second", b"2")
        except StoreUnreachableError as error:
            told.append("Input/output" in str(error))

    async def main() -> int:
        await in_thread("put", work)
        return 0

    stage.a.start(main())
    at_s = 0.0
    while not list((store_server.root / "commits").glob(".tmp*")) or told != ["first"]:
        at_s += 0.000_1
        stage.run(until_s=at_s)
    store_server.lose_power()
    stage.run(until_s=5)
    assert told == ["first", True]
    assert store_server.posix.get("commits/first") == b"1"
    assert store_server.wrong == []


def test_plans_are_a_function_of_the_seed_and_keep_their_numbers() -> None:
    plan = plan_of(5)
    assert plan == plan_of(5) != plan_of(6)
    kept = plan.keep(frozenset({1}))
    assert kept.events == (plan.events[1],)
    assert any(isinstance(event, Happening) for seed in range(9) for event in plan_of(seed).events)
