"""The server under the dashboard: who holds a connection for nothing, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from drainfsm.views.serve import server as serving
from drainfsm.views.serve.access import Access
from drainfsm.views.serve.app import make_app
from drainfsm.views.serve.hub import Hub
from drainfsm.views.serve.server import PatientServer
from drainfsm.views.watch import Reader
from drainfsm_kit.served import WAIT_S, served


@contextlib.asynccontextmanager
async def running(app: ASGIApp, hub: Hub) -> AsyncIterator[int]:
    """The port of a server that ends behind this."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = PatientServer(app, hub, say=pytest.fail)
    over = asyncio.ensure_future(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await over


def quiet_hub(directory: Path) -> Hub:
    return Hub(Reader(clock=lambda: 0, state_dir=directory))


async def _hung_up(reader: asyncio.StreamReader) -> bool:
    """Whether the other side ends it while we wait."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(WAIT_S):
            while await reader.read(1 << 16):
                pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local"])
def test_whoever_asks_for_nothing_is_hung_up_on(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.5)

    async def run() -> None:
        hub = quiet_hub(tmp_path)
        app = make_app(hub, hub.reader.load, Access(host="127.0.0.1"))
        async with running(app, hub) as port:
            viewer = await asyncio.open_connection("127.0.0.1", port)
            viewer[1].write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await viewer[0].readuntil(b"retry")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await _hung_up(reader)
            hub.end()  # nobody has hung up on the one that listens
            assert b"0\r\n\r\n" in await viewer[0].read()
            writer.close()
            viewer[1].close()

    asyncio.run(run())


def test_a_viewer_that_takes_nothing_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "STUCK_S", 0.5)
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await _told(receive)) != "http.disconnect":
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        ended.set()

    async def run() -> None:
        async with running(endless, quiet_hub(tmp_path)) as port:
            with socket.create_connection(("127.0.0.1", port)) as stuck:
                stuck.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                async with asyncio.timeout(WAIT_S):
                    await ended.wait()

    asyncio.run(run())


async def _told(receive: Receive) -> str:
    """What has come by now."""
    try:
        async with asyncio.timeout(0.01):
            return str((await receive())["type"])
    except TimeoutError:
        return ""


def test_it_ends_at_once_and_without_a_word_although_many_look(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryFile() as said,
        served(
            "--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", stderr=said.fileno()
        ) as server,
        contextlib.ExitStack() as viewers,
    ):
        events = [viewers.enter_context(server.events()) for _ in range(5)]
        assert {next(one)[0] for one in events} == {"feed"}
        server.process.send_signal(signal.SIGTERM)
        assert all("fleet" in dict(one) for one in events)
        assert server.process.wait(WAIT_S) in (0, -signal.SIGTERM)
        said.seek(0)
        assert len(said.read().splitlines()) == 1  # what it serves


def test_that_there_is_no_room_for_more_connections_is_told_once(
    tmp_path: Path,
) -> None:
    few = 40
    with (
        tempfile.TemporaryFile() as said,
        served(
            *("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0"),
            stderr=said.fileno(),
            before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)),
        ) as server,
        contextlib.ExitStack() as viewers,
    ):
        with server.events() as events:
            assert next(events)[0] == "feed"
        host, port = server.address.split(":")
        for _ in range(2 * few):
            viewers.enter_context(socket.create_connection((host, int(port))))
        while b"no room" not in os.pread(said.fileno(), 10_000, 0):
            time.sleep(0.05)  # the test's own limit of time ends it
        viewers.close()
        assert server.get("/healthz")[0] == 200
        text = os.pread(said.fileno(), 100_000, 0).decode()
        assert text.count("no room for more connections") == 1
        assert "Traceback" not in text


def test_a_grown_limit_of_files_is_used(tmp_path: Path) -> None:
    with served(
        *("--state-dir", str(tmp_path), "--listen", "127.0.0.1:0"),
        before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512)),
    ) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert any(
            line.split()[:4] == ["Max", "open", "files", "512"] for line in limits.split("\n")
        )


def test_without_what_metrics_need_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    async def run() -> None:
        hub = quiet_hub(tmp_path)
        app = make_app(hub, hub.reader.load, Access(host="127.0.0.1"))
        async with running(app, hub) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
            told = await reader.read()
            assert b" 501 " in told.split(b"\r\n")[0]
            assert b"pip install 'drainfsm[metrics]'" in told
            writer.close()

    asyncio.run(run())
