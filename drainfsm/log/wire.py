"""A bare connection to a NATS server, for reading many stored messages at once.

A general client spends 70 us and more on a message of a batch; splitting the bytes takes about one.
It reads only, by JetStream's Direct Get: one request, no consumer, nothing left behind.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from urllib.parse import SplitResult

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.errors import BrokerError, ConfigError
from drainfsm.log.server import INBOX, NO_TLS, NatsServer

CHUNK_BYTES = 1 << 20
PORT = 4222


class BrokerMessage(msgspec.Struct, frozen=True, gc=False):
    """One stored message."""

    sequence: int
    data: bytes


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[BrokerMessage]
    pending_count: int
    """Matching messages behind this batch; 0: that was all."""


class _Info(msgspec.Struct, frozen=True):
    """The part of a server's greeting that matters here."""

    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""


class Wire:
    """One connection. Whatever goes wrong, it is closed: open another."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, inbox_prefix: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._inbox = f"{inbox_prefix}.{secrets.token_hex(11)}"
        self._asked = 0
        self._busy = asyncio.Lock()

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
                    return await cls._open(server, url)
            except (OSError, TimeoutError, ValueError, BrokerError, ConfigError) as error:
                refused = f"{type(error).__name__} {error}".strip()
        raise BrokerError(f"cannot read from the NATS server: {refused}")

    @classmethod
    async def _open(cls, server: NatsServer, url: SplitResult) -> Wire:
        host = url.hostname or "127.0.0.1"
        reader, writer = await asyncio.open_connection(host, url.port or PORT, limit=CHUNK_BYTES)
        wire = cls(reader, writer, inbox_prefix=server.inbox_prefix or INBOX)
        try:
            greeting = (await reader.readline()).removeprefix(b"INFO ")
            info = read_json(greeting, _Info, lambda why: BrokerError(f"no NATS server: {why}"))
            if server.private and not (info.tls_required or info.tls_available):
                raise BrokerError(NO_TLS)
            if server.private or info.tls_required:
                await writer.start_tls(server.tls(), server_hostname=host)
            writer.write(_connect(server, info.nonce))
            writer.write(f"SUB {wire._inbox}.* 1\r\nPING\r\n".encode())
            answer = await reader.readline()
            if answer != b"PONG\r\n":
                raise BrokerError(answer.decode(errors="replace").strip() or "closed at once")
        except BaseException:
            wire.close()
            raise
        return wire

    @property
    def closed(self) -> bool:
        return self._writer.is_closing() or self._reader.at_eof()

    def close(self) -> None:
        self._writer.transport.abort()

    async def get_batch(self, stream: str, query: dict[str, object], *, timeout_s: float) -> Batch:
        """One Direct Get batch. ``timeout_s`` without a byte is taken as a dead server.

        Raises:
            BrokerError: the server is gone, does not answer, or refuses.
        """
        async with self._busy:
            self._asked += 1
            reply = f"{self._inbox}.{self._asked}"
            payload = msgspec.json.encode(query)
            request = f"PUB $JS.API.DIRECT.GET.{stream} {reply} {len(payload)}\r\n".encode()
            try:
                self._writer.write(request + payload + b"\r\n")
                return await self._collect(timeout_s)
            except TimeoutError as error:
                self.close()
                raise BrokerError(f"no answer to a read of stream {stream}") from error
            except (OSError, ValueError, IndexError) as error:
                self.close()
                raise BrokerError(f"connection lost while reading stream {stream}") from error
            except BaseException:
                self.close()
                raise

    async def _collect(self, timeout_s: float) -> Batch:
        messages: list[BrokerMessage] = []
        rest = b""
        while True:
            async with asyncio.timeout(timeout_s):
                chunk = await self._reader.read(CHUNK_BYTES)
            if not chunk:
                raise ConnectionResetError("the server closed the connection")
            rest, end = self._split(rest + chunk if rest else chunk, messages)
            if end is not None:
                return Batch(messages=messages, pending_count=end)

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
            messages.append(BrokerMessage(sequence, data[body:end]))
        return data[at:], None

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._writer.write(b"PONG\r\n")
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
