"""Saves of all nodes: when one is whole, which are committed, and in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from drainfsm.core import events as e
from drainfsm.core.manifest import Entry
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.coordinator.publisher import Published
from drainfsm.runtime.coordinator.save_committer import WAITING_MAX, SaveCommitter
from drainfsm.runtime.coordinator.saves import OVER_MAX, Saves, StagedEverywhere, Written
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import node_messages as n

WAIT_S_MAX = 60


def staged(staged_bytes: int) -> n.NodeStaged:
    return n.NodeStaged(generation_id="g", staged_bytes=staged_bytes, rank_count=2)


def durable(generation_id: str) -> n.NodeDurable:
    entry = Entry(name="f", size_bytes=10, checksum="sha256:00", rank=0)
    return n.NodeDurable(
        generation_id=generation_id, entries=(entry,), file_counts={0: 1}, durable_ms=1
    )


def test_a_save_is_staged_when_every_node_says_so() -> None:
    saves = Saves(node_count=2)
    assert saves.staged(0, staged(10)) is None, "it has not begun"
    saves.begin("g", step=7)
    assert saves.staged(1, staged(10)) is None
    assert saves.staged(1, staged(10)) is None, "the same node again"
    everywhere = StagedEverywhere(generation_id="g", staged_bytes=15, rank_count=4)
    assert saves.staged(0, staged(5)) == everywhere


def test_the_drains_save_stays_when_the_others_are_dropped() -> None:
    saves = Saves(node_count=1)
    for number, name in enumerate("abc"):
        saves.begin(name, step=number)
    assert saves.drop_all(but="b") == [("a", 0), ("c", 2)]
    assert saves.drop_all(but="b") == []
    assert saves.durable(0, durable("a")) is None
    assert saves.durable(0, durable("b")) is not None


def test_what_is_over_is_remembered_as_long_as_a_report_may_be_late() -> None:
    saves = Saves(node_count=1)
    for number in range(OVER_MAX + 1):
        saves.begin(f"g{number}", step=number)
        saves.drop(f"g{number}")
    saves.begin("g1", step=1)
    assert saves.durable(0, durable("g1")) is None
    saves.begin("g0", step=0)
    assert saves.durable(0, durable("g0")) is not None, "the oldest is forgotten"


# --- commits ------------------------------------------------------------------------------------


class Around:
    """What a committer works with: a store that answers when it is let, and what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.submitted: list[Any] = []
        self.committed: list[str] = []
        self.answers = threading.Event()
        self.reached = threading.Event()
        self.at_once = 0
        attempt = SimpleNamespace(world_size=1, store="s")
        self.state = SimpleNamespace(save=None, attempt=attempt)

    def committer(self) -> SaveCommitter:
        publisher = SimpleNamespace(verify=lambda written, world_size: None, publish=self.publish)
        nodes = SimpleNamespace(tell=self.told.append)
        parts: Any = (Saves(node_count=1), publisher, self, nodes, Tasks(self.told.append), Clock())
        return SaveCommitter(*parts)

    def submit(self, given: Any) -> asyncio.Future[None]:
        self.submitted.append(given)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def publish(self, written: Written, **given: Any) -> Published:
        self.at_once += 1
        assert self.at_once == 1
        self.reached.set()
        assert self.answers.wait(WAIT_S_MAX)
        self.at_once -= 1
        self.committed.append(written.generation_id)
        return cast(Published, SimpleNamespace(manifest_digest="d", slot=1))

    def failed(self) -> list[str]:
        return [one.generation_id for one in self.submitted if isinstance(one, e.CheckpointFailed)]


def run(work: Callable[[Around, SaveCommitter], Awaitable[None]]) -> Around:
    async def main() -> Around:
        around = Around()
        async with asyncio.timeout(WAIT_S_MAX):
            await work(around, around.committer())
        return around

    return asyncio.run(main())


async def until(around: Around, true: Callable[[], bool]) -> None:
    while not true():
        assert around.told == [], "a commit went wrong"
        await asyncio.sleep(0.001)


def save(committer: SaveCommitter, generation_id: str, *, step: int) -> None:
    committer.on_node(0, n.NodeSaveBegan(generation_id=generation_id, step=step))
    committer.on_node(0, durable(generation_id))


def test_saves_that_come_faster_than_commits_wait_and_the_oldest_of_them_are_dropped() -> None:
    async def work(around: Around, committer: SaveCommitter) -> None:
        save(committer, "g0", step=0)
        await until(around, around.reached.is_set)
        for number in range(1, WAITING_MAX + 3):
            save(committer, f"g{number}", step=number)
        assert around.failed() == ["g1", "g2"]
        around.answers.set()
        await until(around, lambda: len(around.committed) == WAITING_MAX + 1)
        save(committer, "last", step=99)
        await until(around, lambda: around.committed[-1] == "last")

    order = ["g0", *(f"g{number}" for number in range(3, WAITING_MAX + 3)), "last"]
    assert run(work).committed == order


def test_what_one_rank_fails_at_no_rank_goes_on_with() -> None:
    async def work(around: Around, committer: SaveCommitter) -> None:
        committer.on_node(0, n.NodeSaveBegan(generation_id="g", step=3))
        committer.on_node(0, n.NodeSaveFailed(generation_id="g", reason="full"))
        committer.on_node(0, n.NodeSaveFailed(generation_id="g", reason="full, too"))

    around = run(work)
    assert around.told == [n.AbortNode(generation_id="g")]
    assert [(one.step, one.reason) for one in around.submitted] == [(3, "full")]
