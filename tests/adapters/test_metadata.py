"""The HTTP client trusts an endpoint with nothing: not its time, size, redirects or grammar."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import pytest

from drainfsm.errors import ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.testing.metadata import AwsMetadataServer, Fault, TencentMetadataServer
from drainfsm_adapters.metadata import (
    BODY_BYTES_MAX,
    MetadataClient,
    NoAnswerError,
    Reply,
    TimedOutError,
    endpoint_of,
)
from drainfsm_kit.tcp import serving

KEY = "/latest/meta-data/instance-id"
LONG_S = 20.0
"""Far more than any call here needs; what must time out does so after ``SHORT_S``."""

SHORT_S = 0.5


def client(url: str, *, timeout_s: float = LONG_S) -> MetadataClient:
    return MetadataClient(
        endpoint_of(url, option="X"), timeout_s=timeout_s, now_unix_ms=Clock().now_unix_ms
    )


def get(url: str, *, timeout_s: float = LONG_S) -> Reply:
    async def once() -> Reply:
        return await client(url, timeout_s=timeout_s).request("GET", KEY, headers={})

    return asyncio.run(once())


def answered_with(raw: bytes) -> Reply:
    """What the client makes of these bytes."""

    async def once() -> Reply:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)
            await writer.drain()

        async with serving(serve) as port:
            return await client(f"http://127.0.0.1:{port}").request("GET", KEY, headers={})

    return asyncio.run(once())


def test_an_answer_is_read() -> None:
    with TencentMetadataServer() as server:
        reply = get(server.url)
    assert (reply.status, reply.text) == (200, "i-bp67acfmxazb4p0123456")
    assert reply.sent_unix_ms <= reply.received_unix_ms


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DRIP])
def test_a_server_that_does_not_come_to_an_end_is_left(fault: Fault) -> None:
    with TencentMetadataServer() as server:
        server.fail(fault)
        with pytest.raises(TimedOutError, match=r"no answer within 0\.5 s"):
            get(server.url, timeout_s=SHORT_S)


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.NO_HTTP, Fault.ENDLESS])
def test_what_is_no_answer_is_an_error_and_no_time_out(fault: Fault) -> None:
    with TencentMetadataServer() as server:
        server.fail(fault)
        with pytest.raises(NoAnswerError) as caught:
            get(server.url)
    assert not isinstance(caught.value, TimedOutError)


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with TencentMetadataServer() as server:
        server.fail(Fault.REDIRECT)
        assert get(server.url).status == 302
        assert server.count("followed") == 0
        assert len(server.requests) == 1


def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with TencentMetadataServer() as proxy, TencentMetadataServer() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert get(server.url).status == 200
        assert (len(proxy.requests), len(server.requests)) == (0, 1)


def test_a_closed_port_is_an_error_at_once() -> None:
    with TencentMetadataServer() as server:
        pass
    with pytest.raises(NoAnswerError, match=r"refused|Connect"):
        get(server.url)


OK = b"HTTP/1.1 200 OK\r\n"
TOO_MANY = str(BODY_BYTES_MAX + 1).encode()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK + b"Content-Length: 2\r\n\r\nhi", b"hi"),
        (OK + b"\r\nuntil the end", b"until the end"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.0 404\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_every_framing_of_http_is_read(raw: bytes, body: bytes) -> None:
    assert answered_with(raw).body == body


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        OK + b"X: " + b"x" * 40_000 + b"\r\n\r\n",
        OK + b"Content-Length: five\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\nshort",
        OK + b"Content-Length: " + TOO_MANY + b"\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_breaks_http_is_an_error(raw: bytes) -> None:
    with pytest.raises(NoAnswerError):
        answered_with(raw)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b"{", b'{"a": 1}'])
def test_a_body_that_is_something_else_is_an_error(body: bytes) -> None:
    reply = answered_with(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    with pytest.raises(NoAnswerError, match="garbage"):
        reply.json(list[int])


def test_a_token_with_a_line_break_is_not_sent() -> None:
    async def once(server: AwsMetadataServer) -> None:
        with pytest.raises(NoAnswerError):
            await client(server.url).request("GET", KEY, headers={"T": "a\r\nX-Evil: 1"})

    with AwsMetadataServer() as server:
        asyncio.run(once(server))
        assert not server.requests


def test_a_resolver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the call, not a second one beside it, and not the end of the event loop."""
    release, lookups = threading.Event(), []

    def hang(host: str, *_: object, **__: object) -> list[object]:
        lookups.append(host)
        release.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "released")

    async def twice() -> None:
        asked = client("http://metadata.tencentyun.com", timeout_s=SHORT_S)
        for _ in range(2):
            with pytest.raises(TimedOutError):
                await asked.request("GET", KEY, headers={})

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        asyncio.run(twice())
        assert lookups == ["metadata.tencentyun.com"], "one look-up at a time, however often asked"
    finally:
        release.set()


def test_a_name_that_does_not_resolve_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(NoAnswerError, match="Name or service not known"):
        get("http://metadata.tencentyun.com")


def test_a_name_is_resolved_once() -> None:
    async def twice(port: int) -> list[int]:
        asked = client(f"http://localhost:{port}")
        return [(await asked.request("GET", KEY, headers={})).status for _ in range(2)]

    with TencentMetadataServer() as server:
        assert asyncio.run(twice(int(server.url.rpartition(":")[2]))) == [200, 200]


def test_the_late_answer_to_an_earlier_call_is_an_answer_to_the_next() -> None:
    """The first call is answered late, all others never: what a service does that wakes up."""

    async def story() -> tuple[int, list[int]]:
        calls: list[int] = []
        ended: list[None] = []
        late = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            calls.append(len(calls))
            if calls[-1] > 0:
                late.set()
                await reader.read()
            else:
                await late.wait()
                writer.write(OK + b"Content-Length: 2\r\n\r\nhi")
                await writer.drain()
            ended.append(None)

        async with serving(serve) as port:
            asked = client(f"http://127.0.0.1:{port}", timeout_s=SHORT_S)
            with pytest.raises(TimedOutError):
                await asked.request("GET", KEY, headers={})
            reply = await asked.request("GET", KEY, headers={}, timeout_s=LONG_S)
            asked.close()
            while len(ended) < len(calls):
                await asyncio.sleep(0.01)
        return reply.status, calls

    assert asyncio.run(story()) == (200, [0, 1])


def test_a_post_that_is_late_is_not_asked_twice_nor_taken_for_another() -> None:
    with AwsMetadataServer() as server:
        server.fail(Fault.HANG)

        async def twice() -> None:
            asked = client(server.url, timeout_s=SHORT_S)
            for _ in range(2):
                with pytest.raises(TimedOutError):
                    await asked.request("POST", KEY, headers={}, body=b"{}")
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1, "a call that is given up is ended"

        asyncio.run(twice())
        assert server.count(KEY) == 2


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 2\u00b20 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Length: {'9' * 5_000}\r\n\r\n",
    ],
)
def test_numbers_that_are_none_are_garbage(head: str) -> None:
    with pytest.raises(NoAnswerError, match="garbage"):
        answered_with(head.encode("latin-1"))


@pytest.mark.parametrize(
    "text", ["https://169.254.169.254", "http://", "http://host:port", "file:///x", "http://a/?b=1"]
)
def test_an_endpoint_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="GCE_METADATA_HOST"):
        endpoint_of(text, option="GCE_METADATA_HOST")


def test_an_endpoint_may_be_a_bare_host_an_ipv6_address_or_have_a_base() -> None:
    bare = endpoint_of("127.0.0.1:8080", option="X")
    assert (bare.host, bare.port, bare.host_header) == ("127.0.0.1", 8080, "127.0.0.1:8080")
    six = endpoint_of("http://[fd00:ec2::254]", option="X")
    assert (six.host, six.port, six.host_header) == ("fd00:ec2::254", 80, "[fd00:ec2::254]")
    based = endpoint_of("http://localhost:1338/mock/", option="X")
    assert based.base == "/mock"


def test_a_connection_is_kept_as_long_as_both_sides_keep_it() -> None:
    """And one that the server has closed meanwhile is asked for anew, without a word."""
    accepted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            for last in (False, True):  # it ends without a word after its second answer
                await reader.readuntil(b"\r\n\r\n")
                text = b"i-%d%d" % (accepted, last)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + text)
                await writer.drain()

    async def ask() -> list[str]:
        async with serving(serve) as port:
            asked = client(f"http://127.0.0.1:{port}")
            asked.keep_connections()
            told = []
            for _ in range(5):
                told.append((await asked.request("GET", KEY, headers={})).text)
                await asyncio.sleep(0.05)
            asked.close()
            await asyncio.sleep(0.05)
            return told

    assert asyncio.run(ask()) == ["i-10", "i-11", "i-20", "i-21", "i-30"]
