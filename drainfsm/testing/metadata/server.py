"""What the servers share: a clock that may be off, faults, an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import enum
import socket
import threading
import time
from collections.abc import Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from drainfsm.runtime.clock import Clock

HAND_OVER_S = 10.0
"""How long ``stop`` waits for the accepting thread."""

ENDLESS_BYTES = 64 * 1024


class Fault(enum.StrEnum):
    """How a metadata service fails."""

    HANG = "hang"
    """Takes the connection and says nothing."""

    DRIP = "drip"
    """Sends a byte now and then, for ever."""

    RESET = "reset"
    UNAVAILABLE = "503"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    REDIRECT = "302"
    """To itself; a client that follows it would get an answer."""

    NO_HTTP = "no http"
    PORTAL = "portal"
    """200 and a page: what a captive portal or a proxy says."""

    ENDLESS = "endless"
    """A body without an end."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


class Response(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}


NOT_FOUND = Response(status=404, body=b"<html><title>404 - Not Found</title></html>")


class MetadataServer:
    """One endpoint; a subclass answers. Everything that is public may be called from any thread."""

    variable = ""
    """The environment variable that points the cloud's adapter here."""

    def __init__(self, *, clock_ahead_ms: int = 0, port: int = 0) -> None:
        self.clock_ahead_ms = clock_ahead_ms
        self.changed = threading.Condition()
        """Guards the state, and wakes those who wait for a change of it."""

        self.requests: list[Request] = []
        self.delay_s = 0.0
        """Before every answer: a slow service."""

        self._clock = Clock()
        self._fault: Fault | None = None
        self._fault_part = ""
        self._port = port
        self._http: _Http | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def endpoint(self) -> str:
        """The value for ``variable``."""
        return self.url

    @property
    def stopping(self) -> bool:
        return self._http is None

    def start(self) -> Self:
        """Listen; after a ``stop``, on the same port again."""
        self._http = _Http(self, self._port)
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def stop(self) -> None:
        """From now on the connection is refused. Requests under way are cut off."""
        http, thread = self._http, self._thread
        if http is None or thread is None:
            return
        with self.changed:
            self._http = None
            self.changed.notify_all()
        http.shutdown()
        thread.join(HAND_OVER_S)
        http.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fail(self, fault: Fault, *, part: str = "") -> None:
        """Every request, or those whose path contains ``part``, until ``heal``."""
        with self.changed:
            self._fault, self._fault_part = fault, part
            self.changed.notify_all()

    def heal(self) -> None:
        with self.changed:
            self._fault = None
            self.changed.notify_all()

    def now_unix_ms(self) -> int:
        """By this server's clock: its ``Date`` and the instants that it states."""
        return self._clock.now_unix_ms() + self.clock_ahead_ms

    def answer(self, request: Request) -> Response:
        """One answer. May wait, on ``changed``, and must end when ``stopping``."""
        raise NotImplementedError

    def count(self, part: str) -> int:
        """Requests so far whose path contains ``part``."""
        with self.changed:
            return sum(part in request.path for request in self.requests)

    def fault_for(self, path: str) -> Fault | None:
        with self.changed:
            return self._fault if self._fault_part in path else None

    def wait_delay(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.stopping, self.delay_s)

    def note(self, request: Request) -> None:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()


class _Http(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = False  # server_close waits for them: nothing outlives stop()
    request_queue_size = 64

    def __init__(self, owner: MetadataServer, port: int) -> None:
        self.owner = owner
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Clients that keep their connections do not hold it up."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.server.owner.now_unix_ms() // 1_000, usegmt=True)

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_GET  # noqa: N815

    def _serve(self) -> None:
        self.close_connection = True
        url = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        request = Request(
            method=self.command,
            path=url.path,
            query={key: values[-1] for key, values in parse_qs(url.query).items()},
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(size),
        )
        owner = self.server.owner
        owner.note(request)
        with contextlib.suppress(OSError):  # the client has given up
            owner.wait_delay()
            answer = None if owner.fault_for(request.path) else owner.answer(request)
            fault = owner.fault_for(request.path)  # it may have come while the answer was held
            if fault is not None:
                _misbehave(self, owner, fault, request.path)
            elif answer is not None and not owner.stopping:
                self.close_connection = self.headers.get("Connection") == "close"
                self.say(answer)

    def say(self, answer: Response) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)


def _misbehave(handler: _Handler, owner: MetadataServer, fault: Fault, path: str) -> None:
    match fault:
        case Fault.HANG:
            with owner.changed:
                owner.changed.wait_for(lambda: owner.stopping or owner.fault_for(path) is not fault)
        case Fault.DRIP:
            handler.send_response(200)
            handler.send_header("Content-Length", "100000")
            handler.end_headers()
            while not owner.stopping:
                handler.wfile.write(b" ")
                time.sleep(0.1)
        case Fault.RESET:
            pass
        case Fault.REDIRECT:
            handler.say(Response(status=302, headers={"Location": f"{owner.url}/followed"}))
        case Fault.NO_HTTP:
            handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        case Fault.PORTAL:
            handler.say(Response(body=b"<html>Please log in</html>"))
        case Fault.ENDLESS:
            handler.send_response(200)
            handler.end_headers()
            while not owner.stopping:
                handler.wfile.write(b"x" * ENDLESS_BYTES)
        case _:
            handler.say(Response(status=int(fault)))
