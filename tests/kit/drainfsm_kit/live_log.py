"""Many jobs at once into one real stream, with readers that follow: what arrives, at what price.

python -m drainfsm_kit.live_log --jobs 200 --records 30 --readers 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.log import Connection, connect
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.shipment import Shipment
from drainfsm_kit.logs import records_of

ARRIVED_S = 300.0


class Reader:
    def __init__(self, connection: Connection, expected: int) -> None:
        self.heard: Counter[str] = Counter()
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._follow(connection, expected))

    async def _follow(self, connection: Connection, expected: int) -> None:
        async for message in connection.follow_messages():
            record = msgspec.json.decode(message.data, type=_Named)
            self.heard[f"{record.job_id}/{record.id}"] += 1
            if len(self.heard) >= expected:
                self.done.set()


class _Named(msgspec.Struct):
    job_id: str
    id: str


async def run(server: EmbeddedServer, *, jobs: int, records: int, readers: int) -> dict[str, float]:
    """Counts are of records, over all jobs, and over all readers: each should hear every record."""
    expected = jobs * records
    writing = [await connect(server.url, timeout_s=60) for _ in range(jobs)]
    await writing[0].ensure_stream()
    reading = [await connect(server.url, timeout_s=60) for _ in range(readers)]
    following = [Reader(connection, expected) for connection in reading]
    shipments = [
        Shipment(records_of(f"job-{n}", records), job_id=f"job-{n}", epoch=1) for n in range(jobs)
    ]
    began, took = time.monotonic(), list[float]()

    async def ship(shipment: Shipment, connection: Connection) -> None:
        await shipment.ship(connection)
        took.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as group:
        for shipment, connection in zip(shipments, writing, strict=True):
            group.create_task(ship(shipment, connection))
    ship_s = time.monotonic() - began
    async with asyncio.timeout(ARRIVED_S):
        for reader in following:
            await reader.done.wait()
    heard_s = time.monotonic() - began
    stored: Counter[bytes] = Counter()
    async for message in writing[0].messages("drainfsm.v1.>"):
        stored[message.data] += 1
    price = _rss_mib(server.pid), len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    for reader in following:
        reader.task.cancel()
    await asyncio.gather(*(reader.task for reader in following), return_exceptions=True)
    for connection in (*writing, *reading):
        await connection.close()
    heard = [reader.heard for reader in following]
    return {
        "written": expected,
        "acknowledged": sum(shipment.shipped_count for shipment in shipments),
        "stored": len(stored),
        "stored twice": sum(stored.values()) - len(stored),
        "heard": sum(map(len, heard)),
        "heard twice": sum(sum(one.values()) - len(one) for one in heard),
        "missed": sum(expected - len(one) for one in heard),
        "s until all is acknowledged": ship_s,
        "s until all is heard": heard_s,
        "s of a job, median": statistics.median(took),
        "s of a job, longest": max(took),
        "server MiB": price[0],
        "server descriptors": price[1],
        "client MiB": _rss_mib("self"),
    }


def _rss_mib(process: int | str) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1_024


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="drainfsm_kit.live_log")
    for name, default in (("jobs", 200), ("records", 30), ("readers", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = vars(parser.parse_args(argv))
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer.start(Path(directory) / "nats")
        try:
            found = asyncio.run(run(server, **arguments))
        finally:
            server.kill()
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")
    whole = found["acknowledged"] == found["stored"] == found["written"]
    return 0 if whole and not (found["missed"] or found["stored twice"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
