"""Replay from JetStream (G4), and one drain loaded cold (G6)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from bench.broker import RawSocket, fill, quick_server
from bench.harness import Case, Size, Topic, at_least, at_most
from bench.workload import attempts, drain
from drainfsm.core.codec import decode
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record, subject_of
from drainfsm.log.jetstream import Connection, connect
from drainfsm.log.stream import STREAM

PATTERN = "drainfsm.v1.>"
FETCH = 500
COLD_LOADS = 20


class Readers:
    """Everybody reads the same stream over a connection of their own, opened beforehand."""

    def __init__(self, url: str, count: int) -> None:
        self.loop = asyncio.Runner()
        self.job = drain()[0].job_id
        self.count = count * len(drain())
        self.subjects = [subject_of(job_id=self.job, epoch=epoch + 1) for epoch in range(count)]
        self.client: Any = self.loop.run(nats.connect(url))
        self.loop.run(fill(self.client, attempts(count)))
        self.ours: Connection = self.loop.run(connect(url))
        self.raw = RawSocket(url)
        self._cold = 0

    def close(self) -> None:
        self.loop.run(self.ours.close())
        self.loop.run(self.client.close())
        self.raw.close()
        self.loop.close()

    def timed(self, read: Callable[[], Awaitable[int]]) -> float:
        """us a record."""
        began = time.perf_counter()
        found = self.loop.run(_awaited(read))
        took = time.perf_counter() - began
        assert found == self.count, (found, self.count)
        return took * 1e6 / self.count

    async def read_ours(self) -> int:
        folds = Folds(self.job)
        async for stored in self.ours.stored(PATTERN):
            folds.read(stored.record)
        return folds.count

    async def read_fetch(self) -> int:
        folds, left = Folds(self.job), self.count
        subscription = await self._pull(PATTERN)
        while left:
            for message in await subscription.fetch(min(FETCH, left), timeout=30):
                folds.read(decode(message.data))
                left -= 1
        await subscription.unsubscribe()
        return folds.count

    async def read_ordered(self) -> int:
        folds, done = Folds(self.job), asyncio.Event()

        async def heard(message: Any) -> None:
            folds.read(decode(message.data))
            if folds.count == self.count:
                done.set()

        context = self.client.jetstream()
        subscription = await context.subscribe(PATTERN, cb=heard, ordered_consumer=True)
        await done.wait()
        await subscription.unsubscribe()
        return folds.count

    def read_raw(self) -> float:
        began = time.perf_counter()
        self.raw.read_all(PATTERN)
        return (time.perf_counter() - began) * 1e6 / self.count

    async def _pull(self, subject: str) -> Any:
        context = self.client.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        return await context.pull_subscribe(subject, stream=STREAM, config=config)

    # --- one drain -------------------------------------------------------------------------

    def cold(self, load: Callable[[str], Awaitable[list[Record]]]) -> float:
        """Median us of some loads, each of another attempt."""
        return self.loop.run(self._cold_loads(load))

    async def _cold_loads(self, load: Callable[[str], Awaitable[list[Record]]]) -> float:
        taken = []
        for subject in self._next_subjects():
            began = time.perf_counter()
            assert len(await load(subject)) == len(drain())
            taken.append((time.perf_counter() - began) * 1e6)
        return statistics.median(taken)

    def cold_raw(self) -> float:
        taken = []
        for subject in self._next_subjects():
            began = time.perf_counter()
            self.raw.read_all(subject)
            taken.append((time.perf_counter() - began) * 1e6)
        return statistics.median(taken)

    def _next_subjects(self) -> Iterator[str]:
        for _ in range(COLD_LOADS):
            self._cold += 1
            yield self.subjects[self._cold % len(self.subjects)]

    async def load_ours(self, subject: str) -> list[Record]:
        return await self.ours.read_subject(subject)

    async def load_pull(self, subject: str) -> list[Record]:
        subscription = await self._pull(subject)
        messages = await subscription.fetch(len(drain()), timeout=30)
        await subscription.unsubscribe()
        return [decode(message.data) for message in messages]


class Folds:
    """Folds the attempts of a job as their records come."""

    def __init__(self, job_id: str) -> None:
        self.count = 0
        self._job_id = job_id
        self._fold = Fold(job_id=job_id, epoch=0)

    def read(self, record: Record) -> None:
        if record.epoch != self._fold.state.attempt.epoch:
            self._fold = Fold(job_id=self._job_id, epoch=record.epoch)
        assert self._fold.read(record)
        self.count += 1


async def _awaited(read: Callable[[], Awaitable[Any]]) -> Any:
    return await read()


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with quick_server() as url:
        readers = Readers(url, size.pick(1_250, 250))
        yield {
            "drainfsm: read, decode, fold": lambda: readers.timed(readers.read_ours),
            "nats-py fetch(500), decode, fold": lambda: readers.timed(readers.read_fetch),
            "nats-py ordered push, decode, fold": lambda: readers.timed(readers.read_ordered),
            "raw socket, bytes counted": readers.read_raw,
            "one drain: drainfsm": lambda: readers.cold(readers.load_ours),
            "one drain: pull consumer": lambda: readers.cold(readers.load_pull),
            "one drain: raw socket": readers.cold_raw,
        }
        readers.close()


TOPIC = Topic(
    name="stream",
    title="Replay from JetStream, and one drain loaded cold",
    unit="us a record (one drain: us)",
    note="Wall time, client and server on the same cores. Records of 428 bytes on average; one "
    "drain is 16 of them. File storage, one replica.",
    open=opened,
    ratios=(
        at_least("G4", "beside nats-py fetch(500), same fold",
                 "nats-py fetch(500), decode, fold", "drainfsm: read, decode, fold",
                 goal=4, gate=3.3),
        at_least("G4", "beside nats-py ordered push, same fold",
                 "nats-py ordered push, decode, fold", "drainfsm: read, decode, fold",
                 goal=2, gate=0.75),
        at_most("G4", "beside the raw socket (floor), which neither decodes nor folds",
                "drainfsm: read, decode, fold", "raw socket, bytes counted"),
        at_least("G6", "one drain, beside a pull consumer",
                 "one drain: pull consumer", "one drain: drainfsm", goal=4, gate=5),
        at_most("G6", "one drain, beside the raw socket (floor)",
                "one drain: drainfsm", "one drain: raw socket", goal=1.5),
    ),
)  # fmt: skip
