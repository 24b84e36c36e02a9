"""A nats-server as the reading benchmarks want it, and bare sockets to it: the floor."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from drainfsm.core.codec import encode
from drainfsm.core.records import Record, subject_of
from drainfsm.log.embedded import EmbeddedServer, server_binary
from drainfsm.log.stream import STREAM, PubAck, create_request

IN_FLIGHT = 1_000


@contextmanager
def quick_server() -> Iterator[str]:
    """With the server's default sync interval: filling it takes seconds, reading is the same."""
    with tempfile.TemporaryDirectory() as directory:
        config = {
            "listen": "127.0.0.1:-1",
            "jetstream": {"store_dir": directory},
            "ports_file_dir": directory,
        }
        path = Path(directory) / "server.conf"
        path.write_text(json.dumps(config, indent=1))
        server = subprocess.Popen(
            [server_binary(), "--config", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _url(Path(directory), server)
        finally:
            server.terminate()
            server.wait()


def _url(directory: Path, server: subprocess.Popen[bytes]) -> str:
    path = directory / f"nats-server_{server.pid}.ports"
    for _ in range(3_000):
        try:
            return str(json.loads(path.read_text())["nats"][0])
        except (FileNotFoundError, ValueError):
            time.sleep(0.01)
    raise AssertionError("nats-server did not come up")


@contextmanager
def careful_server() -> Iterator[str]:
    """The embedded one: it syncs before it acknowledges."""
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer.start(Path(directory) / "nats")
        try:
            yield server.url
        finally:
            server.stop()


async def fill(client: Any, records: list[Record]) -> None:
    """A stream as drainfsm makes it, with these records."""
    await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", create_request(replicas=1), timeout=10)
    context = client.jetstream(publish_async_max_pending=IN_FLIGHT, timeout=60)
    for record in records:
        subject = subject_of(job_id=record.job_id, epoch=record.epoch)
        await context.publish_async(subject, encode(record))
    await context.publish_async_completed()


class ThinClient(asyncio.Protocol):
    """What a client of our own could save: one request at a time on a bare connection of asyncio,
    with headers, a time limit, and the answer decoded. No reconnects, no other subscriptions."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._answer: asyncio.Future[bytes] | None = None
        self._data = b""

    @classmethod
    async def open(cls, url: str) -> ThinClient:
        address, _, token = url.removeprefix("nats://").rpartition("@")[::-1]
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(cls, host or "127.0.0.1", int(port))
        options = {"verbose": False, "headers": True, "lang": "thin", "auth_token": token}
        client._transport = transport
        transport.write(f"CONNECT {json.dumps(options)}\r\nSUB thin.inbox 1\r\n".encode())
        return client

    def data_received(self, data: bytes) -> None:
        self._data += data
        start = self._data.find(b"MSG thin.inbox 1 ")
        eol = self._data.find(b"\r\n", start)
        if start != -1 and eol != -1:
            end = eol + 2 + int(self._data[start + 17 : eol])
            if len(self._data) >= end + 2 and self._answer is not None:
                self._answer.set_result(self._data[eol + 2 : end])
                self._data = self._data[end + 2 :]
        elif self._data.endswith(b"PING\r\n"):
            self._transport.write(b"PONG\r\n")

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> PubAck:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"NATS/1.0\r\n{head}\r\n"
        sizes = f"{len(head)} {len(head) + len(body)}"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            f"HPUB {subject} thin.inbox {sizes}\r\n{head}".encode() + body + b"\r\n"
        )
        async with asyncio.timeout(60):
            return msgspec.json.decode(await self._answer, type=PubAck)

    def close(self) -> None:
        self._transport.abort()


class RawSocket:
    """What the server can deliver: bytes are counted, not looked at."""

    def __init__(self, url: str) -> None:
        address, _, token = url.removeprefix("nats://").rpartition("@")[::-1]
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host or "127.0.0.1", int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options = {"verbose": False, "headers": True, "no_responders": True, "lang": "raw"}
        if token:
            options["auth_token"] = token
        self._socket.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self._socket.sendall(b"SUB raw.inbox 1\r\nPING\r\n")
        self._until(b"PONG\r\n")

    def read_all(self, subject: str, *, batch: int = 20_000) -> int:
        """Bytes of all messages of a subject, by Direct Get in batches."""
        total, sequence, pending = 0, 1, True
        while pending:
            query = {"seq": sequence, "next_by_subj": subject, "batch": batch}
            body = json.dumps(query | {"max_bytes": 16 << 20}).encode()
            head = f"PUB $JS.API.DIRECT.GET.{STREAM} raw.inbox {len(body)}\r\n".encode()
            self._socket.sendall(head + body + b"\r\n")
            size, end = self._until(b"NATS/1.0 204", until=b"\r\n\r\n\r\n")
            total += size
            pending = b"Nats-Num-Pending: 0\r\n" not in end
            if pending:
                found = re.search(rb"Nats-Last-Sequence: (\d+)|Nats-UpTo-Sequence: (\d+)", end)
                last = found and (found[1] or found[2])
                if not last:
                    raise AssertionError(f"no place to go on from: {end!r}")
                sequence = int(last) + 1
        return total

    def publish(self, subject: str, body: bytes) -> None:
        """One message, and its acknowledgement."""
        head = f"PUB {subject} raw.inbox {len(body)}\r\n".encode()
        self._socket.sendall(head + body + b"\r\n")
        self._until(b'"seq":', until=b"}\r\n")

    def close(self) -> None:
        self._socket.close()

    def _until(self, mark: bytes, *, until: bytes = b"") -> tuple[int, bytes]:
        """Read on until ``mark`` and, behind it, ``until`` have come."""
        size, kept = 0, b""
        while True:
            chunk = self._socket.recv(1 << 20)
            if not chunk:
                raise AssertionError("the server hung up")
            size += len(chunk)
            kept = kept[-512:] + chunk if len(chunk) < 4096 else chunk
            at = kept.rfind(mark, max(0, len(kept) - 4096))
            if at != -1 and until in kept[at:]:
                return size, kept[at:]
