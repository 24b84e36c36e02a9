"""A bare connection to a NATS server, for reading many stored messages at once.

A general client spends 70 us and more on a message of a batch; splitting the bytes takes about one.
It reads only, by JetStream's Direct Get: one request, no consumer, nothing left behind.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from urllib.parse import SplitResult

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.errors import BrokerError, ConfigError
from drainfsm.log.server import INBOX, NO_TLS, NatsServer

PORT = 4222
LINE_BYTES_MAX = 1 << 20


class BrokerMessage(msgspec.Struct, frozen=True, gc=False):
    """One stored message."""

    sequence: int
    data: bytes
    subject: bytes = b""
    """Empty: not known."""

    @property
    def job_id(self) -> str:
        """Whose agents may write there. What the record says of itself is their word."""
        names = self.subject.decode(errors="replace").rsplit(".", 2)
        return names[-2] if len(names) > 1 else ""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What has come of a read so far, and not been handed over."""

    messages: list[BrokerMessage]
    pending_count: int | None
    """At the end of a batch: matching messages behind it. 0: that was all."""


class _Info(msgspec.Struct, frozen=True):
    """The part of a server's greeting that matters here."""

    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""


class Incoming(asyncio.Protocol):
    """Keeps what comes: a slow reader must not hold up the server, which would hang up. A batch is
    bounded, so this is."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._came: asyncio.Future[None] | None = None
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self._wake()

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    async def next(self, *, timeout_s: float) -> bytes:
        """Raises: OSError, TimeoutError."""
        if not self._chunks:
            if not self.lost:
                self._came = asyncio.get_running_loop().create_future()
                async with asyncio.timeout(timeout_s):
                    await self._came
            if not self._chunks:
                raise ConnectionResetError("the server closed the connection")
        return self._chunks.popleft()

    async def line(self, *, timeout_s: float) -> bytes:
        """Raises: OSError, TimeoutError."""
        line, end = b"", -1
        while end == -1 and len(line) < LINE_BYTES_MAX:
            line += await self.next(timeout_s=timeout_s)
            end = line.find(b"\n")
        if line[end + 1 :]:
            self._chunks.appendleft(line[end + 1 :])
        return line[: end + 1]

    def forget(self) -> None:
        """What came in the clear is not taken for what comes under TLS."""
        self._chunks.clear()


class Wire:
    """One connection, for one read at a time. Whatever goes wrong, it is closed: open another."""

    def __init__(
        self, transport: asyncio.WriteTransport, incoming: Incoming, *, inbox_prefix: str
    ) -> None:
        self._transport = transport
        self._incoming = incoming
        self._inbox = f"{inbox_prefix}.{secrets.token_hex(11)}"
        self._asked = 0

    @classmethod
    async def open(cls, server: NatsServer, *, timeout_s: float) -> Wire:
        """Connect to the first server named in the URL that answers.

        Raises:
            BrokerError: none does, or it refuses the credentials.
        """
        refused = ""
        for url in server.urls:
            try:
                async with asyncio.timeout(timeout_s):
                    return await cls._open(server, url, timeout_s=timeout_s)
            except (OSError, TimeoutError, ValueError, BrokerError, ConfigError) as error:
                refused = f"{type(error).__name__} {error}".strip()
        raise BrokerError(f"cannot read from the NATS server: {refused}")

    @classmethod
    async def _open(cls, server: NatsServer, url: SplitResult, *, timeout_s: float) -> Wire:
        loop, host = asyncio.get_running_loop(), url.hostname or "127.0.0.1"
        transport, incoming = await loop.create_connection(Incoming, host, url.port or PORT)
        wire = cls(transport, incoming, inbox_prefix=server.inbox_prefix or INBOX)
        try:
            greeting = (await incoming.line(timeout_s=timeout_s)).removeprefix(b"INFO ")
            info = read_json(greeting, _Info, lambda why: BrokerError(f"no NATS server: {why}"))
            if server.private and not (info.tls_required or info.tls_available):
                raise BrokerError(NO_TLS)
            if server.private or info.tls_required:
                incoming.forget()
                tls = await loop.start_tls(transport, incoming, server.tls(), server_hostname=host)
                if tls is None:
                    raise ConnectionResetError("the server closed the connection")
                wire._transport = tls
            subscribe = f"SUB {wire._inbox}.* 1\r\nPING\r\n".encode()
            wire._transport.write(_connect(server, info.nonce) + subscribe)
            answer = await incoming.line(timeout_s=timeout_s)
            if answer != b"PONG\r\n":
                raise BrokerError(answer.decode(errors="replace").strip() or "closed at once")
        except BaseException:
            wire.close()
            raise
        return wire

    @property
    def closed(self) -> bool:
        return self._transport.is_closing() or self._incoming.lost

    def close(self) -> None:
        self._transport.abort()

    async def read(
        self, stream: str, query: dict[str, object], *, timeout_s: float
    ) -> AsyncGenerator[Part, None]:
        """One Direct Get batch, as it comes. ``timeout_s`` without a byte is taken as a dead
        server.

        Raises:
            BrokerError: the server is gone, does not answer, or refuses.
        """
        self._asked += 1
        payload = msgspec.json.encode(query)
        request = f"PUB $JS.API.DIRECT.GET.{stream} {self._inbox}.{self._asked} {len(payload)}\r\n"
        rest, end = b"", None
        try:
            self._transport.write(request.encode() + payload + b"\r\n")
            while end is None:
                chunk = await self._incoming.next(timeout_s=timeout_s)
                messages: list[BrokerMessage] = []
                rest, end = self._split(rest + chunk if rest else chunk, messages)
                yield Part(messages=messages, pending_count=end)
        except TimeoutError as error:
            raise BrokerError(f"no answer to a read of stream {stream}") from error
        except (OSError, ValueError, IndexError) as error:
            raise BrokerError(f"connection lost while reading stream {stream}") from error
        finally:
            if end is None:
                self.close()

    def _split(self, data: bytes, messages: list[BrokerMessage]) -> tuple[bytes, int | None]:
        """Take whole messages off ``data``: what is left over, and the pending count at the end."""
        at = 0
        find, rfind = data.find, data.rfind
        while (eol := find(b"\r\n", at)) != -1:
            if not data.startswith(b"HMSG ", at):
                self._control(data[at:eol])
                at = eol + 2
                continue
            start = eol + 2
            last = rfind(b" ", at, eol)  # HMSG subject sid [reply] header-bytes total-bytes
            body = start + int(data[rfind(b" ", at, last) + 1 : last])
            end = start + int(data[last + 1 : eol])
            if not start <= body <= end:
                raise ValueError(data[at:eol])
            if end + 2 > len(data):
                break
            at = end + 2
            if data[start + 8] == 0x20:  # "NATS/1.0 204": a status, not a message
                return data[at:], _end_of_batch(data[start:body])
            # The last one: a publisher may have sent a header of that name, too.
            mark = rfind(b"\r\nNats-Sequence: ", start, body) + 17
            sequence = int(data[mark : find(b"\r", mark, body)])
            mark = rfind(b"\r\nNats-Subject: ", start, body) + 16
            subject = data[mark : find(b"\r", mark, body)]
            messages.append(BrokerMessage(sequence, data[body:end], subject))
        return data[at:], None

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._transport.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise BrokerError(f"the NATS server says {line.decode(errors='replace')}")


def _end_of_batch(header: bytes) -> int:
    """Pending count of a status message.

    Raises:
        BrokerError: it reports an error instead of the end.
    """
    status, *lines = header.decode(errors="replace").split("\r\n")
    code = status[9:12]
    if code in ("204", "404"):
        for line in lines:
            if line.startswith("Nats-Num-Pending: "):
                return int(line[18:])
        return 0
    if code == "503":
        raise BrokerError("nobody answers a direct read: no such stream, or JetStream is off")
    raise BrokerError(f"a direct read was refused: {status[9:]}")


def _connect(server: NatsServer, nonce: str) -> bytes:
    options: dict[str, object] = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "protocol": 1,
        "lang": "python",
        "version": "0",
        "name": "drainfsm-reader",
        **server.shown(nonce),
    }
    return b"CONNECT " + json.dumps(options).encode() + b"\r\n"
