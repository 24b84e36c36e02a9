"""The simulated world itself: time, processes, threads, network, disk and store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from drainfsm.errors import StoreUnreachableError
from drainfsm.runtime.threads import in_thread
from drainfsm_kit.simulator.fibers import FiberLock
from drainfsm_kit.simulator.plan import Happening, Plan
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
    assert stage.universe.store.objects == {"asked": b""}


def test_an_answer_that_is_lost_is_an_error_although_it_was_done(stage: Stage) -> None:
    stage.universe.store.faults.add("mute", for_ms=1_000)

    async def main() -> int:
        with pytest.raises(StoreUnreachableError, match="the answer is lost"):
            await in_thread("put", lambda: stage.store(stage.a).put_if_absent("name", b"x"))
        return 0

    stage.a.start(main())
    stage.run()
    assert stage.a.exit_code == 0
    assert stage.universe.store.objects == {"name": b"x"}
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


def test_a_process_that_dies_while_it_writes_leaves_at_most_a_torn_tail(stage: Stage) -> None:
    disk = stage.machines[0].disk
    journal = disk.open_journal(stage.a, job_id="job", epoch=1)
    whole = bytes(disk.files[1])

    async def main() -> int:
        await in_thread("journal", lambda: journal.write(b"frame" * 100))
        return 0

    stage.a.start(main())
    stage.run(until_s=0.000_1)
    stage.a.kill()
    stage.run()
    assert (whole + b"frame" * 100).startswith(disk.files[1])
    assert list(disk.records(1)) == []


def test_plans_are_a_function_of_the_seed_and_keep_their_numbers() -> None:
    plan = plan_of(5)
    assert plan == plan_of(5) != plan_of(6)
    kept = plan.keep(frozenset({1}))
    assert kept.events == (plan.events[1],)
    assert any(isinstance(event, Happening) for seed in range(9) for event in plan_of(seed).events)
