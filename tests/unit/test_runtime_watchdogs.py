"""What the coordinator looks at now and then, and what it says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core.inputs import AnyInput, ReportFenced
from drainfsm.core.orders import CheckpointSettings
from drainfsm.errors import StoreUnreachableError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator import watchdogs
from drainfsm.runtime.coordinator.node_reports import NodeReports
from drainfsm.runtime.coordinator.nodes import Nodes
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.wire import node_messages as n
from drainfsm.store import CommitLog
from drainfsm.testing.scenario import Scenario
from drainfsm.testing.stores import MemoryStore

CONFIG = RunConfig(
    job="job",
    store="store",
    state_dir=Path("state"),
    command=("true",),
    nnodes=3,
    coordinator="127.0.0.1:1",
    heartbeat_s=0.02,
    silence_s=0.1,
    attach_s=0.01,
)
BEATS = 20
GIVE_UP_S = 20
"""What has not come by then does not come."""


def while_it_runs(
    watchdog: Callable[[], Coroutine[Any, Any, None]],
    story: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    async def run() -> None:
        task = asyncio.create_task(watchdog())
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await story()
        finally:
            task.cancel()

    asyncio.run(run())


# --- silence -------------------------------------------------------------------------------------


def test_a_node_that_says_nothing_for_too_long_is_lost_and_no_other() -> None:
    lost: list[tuple[int, str]] = []
    beats: list[n.ToNode] = []

    async def watch() -> None:
        nodes = Nodes(node_count=3, heartbeat_s=CONFIG.heartbeat_s)

        def answer(message: n.ToNode) -> None:
            beats.append(message)
            nodes.heard(1)

        nodes.join(0, lambda message: None)  # node 0 itself
        nodes.join(1, answer)
        nodes.join(2, lambda message: None)

        def gone(node: int, reason: str) -> None:
            lost.append((node, reason))
            nodes.leave(node)

        await watchdogs.watch_silence(nodes, CONFIG, Clock(), gone)

    async def story() -> None:
        while not lost or len(beats) < BEATS:
            await asyncio.sleep(CONFIG.heartbeat_s)

    while_it_runs(watch, story)
    ((node, reason),) = lost
    assert node == 2
    assert reason.startswith("node 2 has said nothing for 0.1")


# --- the fence -----------------------------------------------------------------------------------


class Store(MemoryStore):
    silent = False

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        if self.silent:
            raise StoreUnreachableError("no answer")
        return super().names(prefix, after=after)


def publisher_of(store: Store) -> Publisher:
    log = CommitLog(store, job_id="job", pause=lambda _: None)
    log.claim(attempt_id="a", now_unix_ms=1)
    return Publisher(
        store,
        log,
        job_id="job",
        epoch=1,
        attempt_id="a",
        settings=CheckpointSettings(),
        clock=Clock(),
        begins_after=-1,
    )


def test_an_attempt_hears_that_another_has_claimed_also_after_its_store_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdogs, "FENCE_CHECK_S", 0.005)
    store, heard = Store(), list[AnyInput]()
    publisher = publisher_of(store)
    looked = 0
    look = publisher.check_not_fenced

    def counted() -> None:
        nonlocal looked
        looked += 1
        look()

    monkeypatch.setattr(publisher, "check_not_fenced", counted)

    async def looks(count: int) -> None:
        until = looked + count
        while looked < until:
            await asyncio.sleep(0.005)

    async def story() -> None:
        await looks(3)
        store.silent = True
        await looks(3)
        assert heard == []
        store.silent = False
        CommitLog(store, job_id="job").claim(attempt_id="b", now_unix_ms=2)
        while not heard:
            await asyncio.sleep(0.005)

    while_it_runs(lambda: watchdogs.watch_fence(publisher, heard.append), story)
    assert heard == [ReportFenced(by_epoch=2)]


# --- attachment ----------------------------------------------------------------------------------


def attachment(reports: NodeReports) -> list[str]:
    warned: list[str] = []
    asyncio.run(watchdogs.watch_attachment(reports, CONFIG, warned.append))
    return warned


def test_the_nodes_whose_ranks_have_not_attached_are_named() -> None:
    reports = NodeReports(node_count=3)
    reports.formed(1, n.NodeFormed(ranks=(1,), world_size=3, save_bytes=0, restart=0))
    (said,) = attachment(reports)
    assert said.startswith("after 0.01 s not every rank of node(s) 0, 2 has attached")
    for node in (0, 2):
        reports.formed(node, n.NodeFormed(ranks=(node,), world_size=3, save_bytes=0, restart=0))
    assert attachment(reports) == []


def test_of_many_nodes_that_have_not_attached_the_first_are_named() -> None:
    (said,) = attachment(NodeReports(node_count=100))
    assert "node(s) 0, 1, 2, 3, 4, 5, 6, 7 has" in said


# --- the window ----------------------------------------------------------------------------------


def test_a_window_that_is_too_short_is_said_once_and_again_when_that_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdogs, "WINDOW_CHECK_S", 0.001)
    warned: list[str] = []
    looked = 0
    scenario = Scenario(grace_ms=60_000)
    reports = NodeReports(node_count=2)

    def state() -> Any:
        nonlocal looked
        looked += 1
        return scenario.state

    async def looks() -> None:
        until = looked + 3
        while looked < until:
            await asyncio.sleep(0.001)

    async def steps(step_ms: int) -> None:
        reports.step_time(0, n.NodeStepTime(step_ms=step_ms))
        await looks()

    async def story() -> None:
        await looks()
        await steps(10)
        assert warned == []
        await steps(100_000)
        assert len(warned) == 1
        await steps(10)
        assert len(warned) == 1
        await steps(200_000)
        assert len(warned) == 2
        await steps(10)
        scenario.when(scenario.notice(in_ms=60_000))  # its own budget is on record
        await steps(300_000)

    while_it_runs(lambda: watchdogs.watch_window(reports, state, warned.append), story)
    assert len(warned) == 2
    assert warned[0].startswith("a notice of --grace 60 s would save nothing: ")
    assert "(steps take up to 100000 ms)" in warned[0]
