"""HTTP to a metadata endpoint: plain, on a link-local address, and trusted with nothing.

Every call is bounded in time and size, follows no redirect, uses no proxy (it opens a socket and
reads no environment), and teaches ``ServerClock`` what the server's ``Date`` says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from drainfsm.core.foreign import UNREADABLE, read_json
from drainfsm.errors import ConfigError
from drainfsm_adapters.resolve import Resolver
from drainfsm_adapters.server_clock import ServerClock

PATIENCE_S = 15.0
"""How long a late call goes on beside the calls after it, so that a service that is always slower
than the time limit is heard, too."""

LATE_MAX = 4
"""Late calls for one path: the oldest, and the newest ones."""

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 256 * 1024
"""Thousands of scheduled events; a longer answer is not metadata."""

SIZE_DIGITS_MAX = 12
DETAIL_CHARS_MAX = 120
IDLE_MAX = 4
"""Kept connections: as many as there are signals that are asked about side by side."""

FRAMED_BY = frozenset({"content-length", "transfer-encoding"})
STATUS = re.compile(r"[1-5][0-9][0-9]")
T = TypeVar("T")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Exchanged = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


class NoAnswerError(Exception):
    """The endpoint gave no usable answer. Becomes UNKNOWN, and never leaves an adapter."""


def garbage(why: object) -> NoAnswerError:
    return NoAnswerError(f"garbage: {why}"[:DETAIL_CHARS_MAX])


def instant(parse: Callable[[str], int], text: str) -> int:
    """What ``parse`` makes of it, UTC milliseconds.

    Raises:
        NoAnswerError: it is not an instant.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise garbage(error) from error


class TimedOutError(NoAnswerError):
    """Nothing came in time: what a hop limit, a packet filter or a dead host look like."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: dict[str, str]
    """Names in lower case."""

    body: bytes
    sent_unix_ms: int
    received_unix_ms: int

    @property
    def text(self) -> str:
        """The body, stripped.

        Raises:
            NoAnswerError: it is not UTF-8.
        """
        try:
            return self.body.decode().strip()
        except UNREADABLE as error:
            raise garbage(repr(self.body[:40])) from error

    def json(self, kind: type[T]) -> T:
        """The body as ``kind``.

        Raises:
            NoAnswerError: it is something else.
        """
        return read_json(self.body, kind, garbage)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int
    base: str = ""
    host_header: str


def endpoint_of(text: str, *, option: str, host_header: str = "") -> Endpoint:
    """``http://HOST[:PORT][/BASE]``, or the same without ``http://``.

    Raises:
        ConfigError: it is something else; names ``option``.
    """
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port or 80
    except ValueError:
        port = -1
    if url.scheme != "http" or not url.hostname or port < 0 or url.query or url.username:
        raise ConfigError(f"{option}={text!r}: a metadata endpoint is http://HOST[:PORT]")
    return Endpoint(
        host=url.hostname,
        port=port,
        base=url.path.rstrip("/"),
        host_header=host_header or url.netloc,
    )


class MetadataClient:
    """One endpoint. Any number of requests may be under way at once."""

    def __init__(
        self, endpoint: Endpoint, *, timeout_s: float, now_unix_ms: Callable[[], int]
    ) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.clock = ServerClock()
        self.now_unix_ms = now_unix_ms
        self._resolver = Resolver(endpoint.host)
        self._late: dict[tuple[str, str], list[asyncio.Task[Reply | NoAnswerError]]] = {}
        self._idle: list[Connection] = []
        self._keeps = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Reply:
        """One exchange, alone on its connection, which is kept for the next one where both
        sides keep it. Any status is an answer, 3xx included.

        An exchange that is late goes on for ``patience_s``; its answer, if it comes first, is the
        answer to the next request for that path. A POST is never asked twice.

        Raises:
            NoAnswerError: nothing usable came back in time.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        if not self._keeps:
            headers = {**headers, "Connection": "close"}
        asked = _request_bytes(self.endpoint, method, path, headers, body)
        key, once = (method, path), method == "POST"
        late_s = limit_s if once else max(limit_s, patience_s)
        newest = asyncio.ensure_future(self._answer(asked, limit_s=late_s, once=once))
        racing = [*self._late.pop(key, ()), newest]
        try:
            answer = await _first_answer(racing, newest, limit_s=limit_s)
        except BaseException:
            _cancel(racing)
            raise
        if racing and not once:
            self._late.setdefault(key, []).extend(racing)
        else:
            _cancel(racing)
        if isinstance(answer, NoAnswerError):
            if isinstance(answer, TimedOutError):
                self._resolver.forget()
            self._hang_up()
            raise answer
        return answer

    def keep_connections(self) -> None:
        """Keep connections until ``close``: for clients that ask again and again."""
        self._keeps = True

    def close(self) -> None:
        """No more requests: give up late calls."""
        for racing in self._late.values():
            _cancel(racing)
        self._late.clear()
        self._keeps = False
        self._hang_up()

    def _hang_up(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()

    async def _answer(self, asked: bytes, *, limit_s: float, once: bool) -> Reply | NoAnswerError:
        sent_unix_ms = self.now_unix_ms()
        try:
            async with asyncio.timeout(limit_s):
                status, answered, content = await self._exchange(asked, once=once)
        except TimeoutError:
            return TimedOutError(f"no answer within {limit_s:g} s")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            return garbage(error)
        except OSError as error:
            self._resolver.forget()
            return NoAnswerError(f"{error.strerror or error}")
        received_unix_ms = self.now_unix_ms()
        if date := answered.get("date"):
            self.clock.observe(date, sent_unix_ms=sent_unix_ms, received_unix_ms=received_unix_ms)
        return Reply(
            status=status,
            headers=answered,
            body=content,
            sent_unix_ms=sent_unix_ms,
            received_unix_ms=received_unix_ms,
        )

    async def _exchange(self, request: bytes, *, once: bool) -> Exchanged:
        while self._idle and not once:
            kept = self._idle.pop()
            if kept[0].at_eof():
                kept[1].transport.abort()
                continue
            try:
                return await self._converse(kept, request)
            except ConnectionError:
                continue  # the server has not kept it
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
        address = await self._resolver.address()
        fresh = await asyncio.open_connection(address, self.endpoint.port, limit=HEAD_BYTES_MAX)
        return await self._converse(fresh, request)

    async def _converse(self, connection: Connection, request: bytes) -> Exchanged:
        reader, writer = connection
        kept = False
        try:
            writer.write(request)
            await writer.drain()
            status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            body = await _read_body(reader, status, headers)
            kept = self._keeps and len(self._idle) < IDLE_MAX and _is_kept(status, headers)
            return status, headers, body
        finally:
            if kept:
                self._idle.append(connection)
            else:
                writer.transport.abort()


def _is_kept(status: int, headers: Mapping[str, str]) -> bool:
    """The server goes on listening, and it is known where its answer ends."""
    framed = status in (204, 304) or not headers.keys().isdisjoint(FRAMED_BY)
    return framed and headers.get("connection", "").lower() != "close"


Racing = list[asyncio.Task[Reply | NoAnswerError]]


async def _first_answer(
    racing: Racing, newest: asyncio.Task[Reply | NoAnswerError], *, limit_s: float
) -> Reply | NoAnswerError:
    """Of the calls under way, oldest first; what is left in ``racing`` is late. An older call that
    fails says nothing: it is the newest that fails."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + limit_s
    while True:
        left_s = max(0.0, give_up_s - loop.time())
        done, _ = await asyncio.wait(racing, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            if len(racing) > LATE_MAX:
                _cancel(racing[1 : -LATE_MAX + 1])
                del racing[1 : -LATE_MAX + 1]
            return TimedOutError(f"no answer within {limit_s:g} s")
        for call in [call for call in racing if call in done]:
            answer = call.result()
            before = racing.index(call)
            if isinstance(answer, Reply):  # what was asked earlier would only be older
                _cancel(racing[:before])
                del racing[: before + 1]
                return answer
            racing.remove(call)
            if call is newest:
                return answer


def _cancel(calls: Sequence[asyncio.Task[Reply | NoAnswerError]]) -> None:
    for call in calls:
        call.cancel()


def _request_bytes(
    endpoint: Endpoint, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    lines = [
        f"{method} {endpoint.base}{path} HTTP/1.1",
        f"Host: {endpoint.host_header}",
        "User-Agent: drainfsm",
        "Accept: */*",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise NoAnswerError("garbage: a token with a line break in it")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Raises: ValueError: not an HTTP answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not STATUS.fullmatch(code):
        raise ValueError(f"{first[:40]!r} is not an HTTP status line")
    headers: dict[str, str] = {} if version != "HTTP/1.0" else {"connection": "close"}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(code), headers


async def _read_body(
    reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]
) -> bytes:
    """Raises: ValueError: too large, or framed wrongly."""
    if status in (204, 304):
        return b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    stated = headers.get("content-length")
    if stated is not None:
        if len(stated) > SIZE_DIGITS_MAX:
            raise ValueError(f"a length of {stated[:SIZE_DIGITS_MAX]}… bytes")
        return await reader.readexactly(_size_within_limit(int(stated)))
    body = b""
    while part := await reader.read(HEAD_BYTES_MAX):
        body += part
        _size_within_limit(len(body))
    return body


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        _size_within_limit(len(body) + size)
        body += (await reader.readexactly(size + 2))[:size]
        if size == 0:
            return body


def _size_within_limit(size: int) -> int:
    if not 0 <= size <= BODY_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes; more than {BODY_BYTES_MAX} is not metadata")
    return size
