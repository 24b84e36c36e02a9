"""Appending to the log: the journal, and the stream that syncs before it acknowledges (G7, G8)."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
from msgspec.structs import replace

from bench.broker import RawSocket, ThinClient, careful_server
from bench.harness import Case, Size, Topic, at_least, at_most
from bench.workload import drain
from drainfsm.core import events as e
from drainfsm.core.codec import encode
from drainfsm.core.records import Record
from drainfsm.log.jetstream import Connection, connect
from drainfsm.log.journal import Journal, journal_path

JOB = "bench"
ONE = (e.SourceRecovered(source="spot", node=0),)
TEN = ONE * 10
EPOCH_DISK, EPOCH_ONE, EPOCH_TEN, EPOCH_SINGLES, EPOCH_RAW, EPOCH_PEER, EPOCH_THIN = range(1, 8)


class Writers:
    def __init__(self, url: str, directory: Path, times: int) -> None:
        self.times = times
        self.loop = asyncio.Runner()
        self.ours: Connection = self.loop.run(connect(url))
        self.loop.run(self.ours.ensure_stream(sync_always=True))
        self.client: Any = self.loop.run(nats.connect(url))
        self.raw = RawSocket(url)
        self.thin = self.loop.run(ThinClient.open(url))
        path = journal_path(directory, job_id=JOB, epoch=EPOCH_DISK)
        self.journal = Journal.open(path, job_id=JOB, epoch=EPOCH_DISK)
        self.file = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT)
        self.size = 0
        self.p50_us: dict[str, float] = {}
        self.last = {EPOCH_ONE: 0, EPOCH_TEN: 0, EPOCH_PEER: 0, EPOCH_THIN: 0}
        self.count = dict.fromkeys(range(1, 8), 0)

    def close(self) -> None:
        self.thin.close()
        self.loop.run(self.ours.close())
        self.loop.run(self.client.close())
        self.loop.close()
        self.raw.close()
        self.journal.close()
        os.close(self.file)

    def record(self, epoch: int, events: tuple[e.Event, ...]) -> Record:
        position = self.count[epoch]
        self.count[epoch] += 1
        base = drain()[0]
        return replace(
            base, id=f"r{position}", job_id=JOB, epoch=epoch, follows=position, events=events
        )

    def measure(self) -> float:
        """Turn by turn: the disk is quick for a second and slow for the next."""
        self.p50_us = self.loop.run(self._measure())
        return self.p50_us["file: append, fdatasync"]

    def value(self, name: str) -> float:
        return self.p50_us[name]

    async def _measure(self) -> dict[str, float]:
        taken: dict[str, list[float]] = {name: [] for name in CASES}
        for turn in range(self.times):
            for name, way in CASES.items():
                if name == TEN_PUBLISHES and turn % 4:
                    continue
                began = time.perf_counter()
                await way(self)
                taken[name].append((time.perf_counter() - began) * 1e6)
        return {name: statistics.median(values) for name, values in taken.items()}

    async def fdatasync(self) -> None:
        data = encode(self.record(EPOCH_RAW, ONE))
        self.size += os.pwrite(self.file, data, self.size)
        os.fdatasync(self.file)

    async def append_journal(self) -> None:
        self.journal.append(self.record(EPOCH_DISK, ONE))

    async def publish_raw(self) -> None:
        record = self.record(EPOCH_RAW, ONE)
        self.raw.publish(f"drainfsm.v1.{JOB}.{EPOCH_RAW}", encode(record))

    async def append_one(self) -> None:
        record, after = self.record(EPOCH_ONE, ONE), self.last[EPOCH_ONE]
        self.last[EPOCH_ONE] = await self.ours.append(record, after_sequence=after)

    async def append_ten(self) -> None:
        record, after = self.record(EPOCH_TEN, TEN), self.last[EPOCH_TEN]
        self.last[EPOCH_TEN] = await self.ours.append(record, after_sequence=after)

    async def publish_one(self) -> None:
        """nats-py's own publish, with the same expectation."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.last[EPOCH_PEER])}
        self.last[EPOCH_PEER] = await self._publish(EPOCH_PEER, headers)

    async def publish_thin(self) -> None:
        """The same, with nothing of a client but that."""
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.last[EPOCH_THIN])}
        body = encode(self.record(EPOCH_THIN, ONE))
        ack = await self.thin.publish(f"drainfsm.v1.{JOB}.{EPOCH_THIN}", body, headers)
        self.last[EPOCH_THIN] = ack.seq

    async def publish_ten(self) -> None:
        """Ten messages, one after another, as a log with one message an event would."""
        for _ in range(10):
            await self._publish(EPOCH_SINGLES, {})

    async def _publish(self, epoch: int, headers: dict[str, str]) -> int:
        data = encode(self.record(epoch, ONE))
        subject = f"drainfsm.v1.{JOB}.{epoch}"
        ack = await self.client.jetstream().publish(subject, data, headers=headers)
        return int(ack.seq)


TEN_PUBLISHES = "stream: ten nats-py publishes"
CASES: dict[str, Callable[[Writers], Awaitable[None]]] = {
    "file: append, fdatasync": Writers.fdatasync,
    "journal: append": Writers.append_journal,
    "stream: raw publish, ack": Writers.publish_raw,
    "stream: nats-py publish, same expectation": Writers.publish_one,
    "stream: thin client, same expectation": Writers.publish_thin,
    "stream: append, one event": Writers.append_one,
    "stream: append, ten events": Writers.append_ten,
    TEN_PUBLISHES: Writers.publish_ten,
}


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with careful_server() as url, tempfile.TemporaryDirectory() as directory:
        writers = Writers(url, Path(directory), size.pick(100, 40))
        first, *others = CASES
        cases: dict[str, Case] = {first: writers.measure}
        yield cases | {name: partial(writers.value, name) for name in others}
        writers.close()


TOPIC = Topic(
    name="append",
    title="Appending one decision, durably",
    unit="us, p50 of a round",
    note="Wall time. nats-server with sync_interval: always, one replica, on this machine's disk. "
    "A drain waits for the journal alone; the stream follows behind it. The stream's appends carry "
    "the expected last sequence.",
    open=opened,
    ratios=(
        at_most("G7", "append to the journal, beside a local fdatasync (floor)",
                "journal: append", "file: append, fdatasync", goal=2, gate=1.5),
        at_most("G7", "append to the stream, beside a local fdatasync",
                "stream: append, one event", "file: append, fdatasync", goal=2),
        at_most("G7", "append to the stream, beside raw publish and ack (floor)",
                "stream: append, one event", "stream: raw publish, ack", goal=1.2, gate=3.2),
        at_most("G7", "limit: a thin client of our own, beside raw publish and ack",
                "stream: thin client, same expectation", "stream: raw publish, ack"),
        at_most("G7", "append to the stream, beside nats-py's publish",
                "stream: append, one event", "stream: nats-py publish, same expectation",
                gate=1.5),
        at_most("G8", "ten events in one decision, beside one",
                "stream: append, ten events", "stream: append, one event", goal=1.15, gate=1.6),
        at_least("G8", "ten publishes, beside one decision of ten events",
                 "stream: ten nats-py publishes", "stream: append, ten events", goal=8, gate=6),
    ),
)  # fmt: skip
