"""Appending to the log: the journal, and the stream that syncs before it acknowledges (G7, G8)."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
from msgspec.structs import replace

from bench.broker import RawSocket, careful_server
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
EPOCH_DISK, EPOCH_ONE, EPOCH_TEN, EPOCH_SINGLES, EPOCH_RAW = range(1, 6)


class Writers:
    def __init__(self, url: str, directory: Path, times: int) -> None:
        self.times = times
        self.loop = asyncio.Runner()
        self.ours: Connection = self.loop.run(connect(url))
        self.loop.run(self.ours.ensure_stream(sync_always=True))
        self.client: Any = self.loop.run(nats.connect(url))
        self.raw = RawSocket(url)
        path = journal_path(directory, job_id=JOB, epoch=EPOCH_DISK)
        self.journal = Journal.open(path, job_id=JOB, epoch=EPOCH_DISK)
        self.file = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT)
        self.size = 0
        self.last = {EPOCH_ONE: 0, EPOCH_TEN: 0}
        self.count = dict.fromkeys(range(1, 6), 0)

    def close(self) -> None:
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

    def p50_us(self, work: Callable[[], object]) -> float:
        return statistics.median(_us(work) for _ in range(self.times))

    def fdatasync(self) -> None:
        data = encode(self.record(EPOCH_RAW, ONE))
        self.size += os.pwrite(self.file, data, self.size)
        os.fdatasync(self.file)

    def append_journal(self) -> None:
        self.journal.append(self.record(EPOCH_DISK, ONE))

    def append_stream(self, epoch: int, events: tuple[e.Event, ...]) -> float:
        return self.loop.run(self._append_stream(epoch, events))

    async def _append_stream(self, epoch: int, events: tuple[e.Event, ...]) -> float:
        taken = []
        for _ in range(self.times):
            began = time.perf_counter()
            record = self.record(epoch, events)
            self.last[epoch] = await self.ours.append(record, after_sequence=self.last[epoch])
            taken.append((time.perf_counter() - began) * 1e6)
        return statistics.median(taken)

    def publish_raw(self) -> None:
        record = self.record(EPOCH_RAW, ONE)
        self.raw.publish(f"drainfsm.v1.{JOB}.{EPOCH_RAW}", encode(record))

    def publish_ten(self) -> float:
        """Ten messages, one after another, as a log with one message an event would."""
        return self.loop.run(self._publish_ten())

    async def _publish_ten(self) -> float:
        context, taken = self.client.jetstream(), []
        for _ in range(self.times // 4):
            began = time.perf_counter()
            for _ in range(10):
                record = self.record(EPOCH_SINGLES, ONE)
                await context.publish(f"drainfsm.v1.{JOB}.{EPOCH_SINGLES}", encode(record))
            taken.append((time.perf_counter() - began) * 1e6)
        return statistics.median(taken)


def _us(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with careful_server() as url, tempfile.TemporaryDirectory() as directory:
        writers = Writers(url, Path(directory), size.pick(100, 40))
        yield {
            "file: append, fdatasync": lambda: writers.p50_us(writers.fdatasync),
            "journal: append": lambda: writers.p50_us(writers.append_journal),
            "stream: raw publish, ack": lambda: writers.p50_us(writers.publish_raw),
            "stream: append, one event": lambda: writers.append_stream(EPOCH_ONE, ONE),
            "stream: append, ten events": lambda: writers.append_stream(EPOCH_TEN, TEN),
            "stream: ten nats-py publishes": writers.publish_ten,
        }
        writers.close()


TOPIC = Topic(
    name="append",
    title="Appending one decision, durably",
    unit="us, p50 of a round",
    note="Wall time. nats-server with sync_interval: always, one replica, on this machine's disk. "
    "The stream's appends carry the expected last sequence.",
    open=opened,
    ratios=(
        at_most("G7", "append to the stream, beside a local fdatasync (floor)",
                "stream: append, one event", "file: append, fdatasync", goal=2, gate=3.5),
        at_most("G7", "append to the stream, beside raw publish and ack (floor)",
                "stream: append, one event", "stream: raw publish, ack", goal=1.2, gate=2.2),
        at_most("G7", "append to the journal, beside a local fdatasync (floor)",
                "journal: append", "file: append, fdatasync", gate=1.7),
        at_most("G8", "ten events in one decision, beside one",
                "stream: append, ten events", "stream: append, one event", goal=1.15, gate=1.6),
        at_least("G8", "ten publishes, beside one decision of ten events",
                 "stream: ten nats-py publishes", "stream: append, ten events", goal=8, gate=5),
    ),
)  # fmt: skip
