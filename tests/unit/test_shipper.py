"""What the shipper of the log reads, tells and gives up, with a server that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from drainfsm.core.records import Record
from drainfsm.errors import BrokerError
from drainfsm.log import shipper as module
from drainfsm.log.jetstream import Connection
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.shipper import Shipper, World
from drainfsm_kit.logs import records_of

JOB = "job"


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    monkeypatch.setattr(module, "RETRY_S_MAX", 0.001)


class Refusing:
    """A server that says something else each time, or accepts everything."""

    def __init__(self, tries: list[int], number: int, *, refuses: bool) -> None:
        self.reconnect_hooks: list[Callable[[], None]] = []
        self.appended: list[tuple[int, int]] = []
        self.link, self.closed = self, False
        self._tries, self._number, self._refuses = tries, number, refuses
        self.forgets_after_ms, self.stream_created = 1_000, "now"

    async def ensure_stream(self, **_: Any) -> list[str]:
        self._tries.append(self._number)
        if self._refuses:
            raise BrokerError(f"refused {len(self._tries)}")
        return []

    def created_stream(self) -> bool:
        return False

    async def count(self, subject: str) -> int:
        return sum(subject.endswith(f".{epoch}") for epoch, _ in self.appended)

    async def append(self, record: Record, *, after_sequence: int) -> int:
        assert record.job_id == JOB
        self.appended.append((record.epoch, record.follows))
        return after_sequence + 1

    async def close(self, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.closed = True


class Scene:
    def __init__(self, state_dir: Path, *, refuses: bool = True) -> None:
        self.tries: list[int] = []
        self.told: list[str] = []
        self.read: list[str] = []
        self._refuses, self._made = refuses, 0
        self.connection: Refusing
        world = World(
            connect=self._connect, journals=self._journals, read_journal=self._records, noted=False
        )
        self.shipper = Shipper(
            server="nats://nobody",
            state_dir=state_dir,
            job_id=JOB,
            on_error=self.told.append,
            world=world,
        )

    async def _connect(self, *_: Any, **__: Any) -> Connection:
        self._made += 1
        self.connection = Refusing(self.tries, self._made, refuses=self._refuses)
        return cast(Connection, self.connection)

    def _journals(self, *_: Any) -> dict[int, Path]:
        return {epoch: Path(f"{epoch}") for epoch in (1, 2, 3)}

    def _records(self, path: Path) -> list[Record]:
        self.read.append(path.name)
        return records_of(JOB, 3, epoch=int(path.name))

    async def until(self, reached: Callable[[], bool]) -> None:
        await self.shipper.start()
        while not reached():
            await asyncio.sleep(0.001)
        await self.shipper.close(timeout_ms=5_000)


def test_only_journals_of_earlier_attempts_are_read_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path, refuses=False)
    path = journal_path(tmp_path, job_id=JOB, epoch=2)
    journal = Journal.open(path, job_id=JOB, epoch=2)
    journal.append(*records_of(JOB, 2, epoch=2))

    async def ship() -> None:
        scene.shipper.attach(journal)
        await scene.shipper.start()
        assert await scene.shipper.flush(timeout_ms=60_000)
        journal.append(*records_of(JOB, 1, epoch=2, first=2))
        assert await scene.shipper.flush(timeout_ms=60_000)
        await scene.shipper.close(timeout_ms=5_000)

    asyncio.run(ship())
    journal.close()
    assert scene.read == ["1"]


@pytest.mark.parametrize(("later_ms", "shipped"), [(1_000, True), (1_001, False)])
def test_an_attempt_that_the_stream_has_forgotten_by_age_is_not_shipped_again(
    tmp_path: Path, later_ms: int, shipped: bool
) -> None:
    scene = Scene(tmp_path, refuses=False)
    newest_unix_ms = records_of(JOB, 3, epoch=1)[-1].at_unix_ms
    (live,) = records_of(JOB, 1, epoch=2)
    path = journal_path(tmp_path, job_id=JOB, epoch=2)
    journal = Journal.open(path, job_id=JOB, epoch=2)
    journal.append(replace(live, at_unix_ms=newest_unix_ms + later_ms))

    async def ship() -> None:
        scene.shipper.attach(journal)
        await scene.shipper.start()
        assert await scene.shipper.flush(timeout_ms=60_000)
        await scene.shipper.close(timeout_ms=5_000)

    asyncio.run(ship())
    journal.close()
    earlier = [(1, 0), (1, 1), (1, 2)] if shipped else []
    assert scene.connection.appended == [*earlier, (2, 0)]


def test_a_connection_is_suspect_after_three_failures_in_a_row(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asyncio.run(scene.until(lambda: len(scene.tries) >= 7))
    assert scene.tries[:7] == [1, 1, 1, 2, 2, 2, 3]


def test_an_outage_that_says_something_else_each_time_is_told_up_to_a_limit(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    asyncio.run(scene.until(lambda: len(scene.tries) >= module.REPORTED_MAX + 20))
    assert scene.told == [f"refused {n + 1}" for n in range(module.REPORTED_MAX)]
