"""Real S3 APIs over HTTP for tests, and a proxy before them that misbehaves.

moto's server keeps everything in memory and answers one request at a time; localbucket's keeps
files in a directory and answers as many as come.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

START_S_MAX = 60.0
BUCKET = "bucket"

_HOP_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


START = """
import runpy, socketserver, sys
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A server that sends head and body of an answer apart, and leaves the body until the head is
acknowledged, takes 40 ms for the smallest request. No real store does that."""


@contextmanager
def s3_server() -> Iterator[int]:
    """Port of a fresh server with one bucket. It forgets everything when the context ends."""
    with _served(["moto.server", "-H", "127.0.0.1"], port_option="-p") as port:
        yield port


def has_file_server() -> bool:
    """Whether the package of ``s3_file_server`` is installed."""
    return importlib.util.find_spec("localbucket") is not None


@contextmanager
def s3_file_server(*, below: str | None = None) -> Iterator[int]:
    """The same of another server, written by others. ``below``: where its files are; None: on the
    disk."""
    with tempfile.TemporaryDirectory(dir=below) as directory:
        command = ["localbucket", "--host", "127.0.0.1", directory]
        with _served(command, port_option="--port") as port:
            yield port


@contextmanager
def _served(module: Sequence[str], *, port_option: str) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-c", START, *module, port_option, str(port)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_bucket(process, port)
        yield port
    finally:
        process.kill()
        process.wait()


def _await_bucket(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + START_S_MAX
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)
        else:
            return


@contextmanager
def environment(port: int) -> Iterator[None]:
    """The process finds the server (or a proxy) where it looks for S3."""
    changed = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Fault:
    """Something the proxy does to the next ``count`` requests that match."""

    def __init__(
        self,
        method: str,
        pattern: str,
        *,
        count: int = 1,
        status: int = 0,
        headers: dict[str, str] | None = None,
        forward: bool = False,
        delay_s: float = 0.0,
        short: bool = False,
    ) -> None:
        """``status``: answer so; 0: no answer, the connection breaks. ``forward``: the server
        gets the request first (what it did stands). ``delay_s`` alone: only slow. ``short``: the
        true answer, of whose body the second half is missing."""
        self.method = method
        self.pattern = re.compile(pattern)
        self.count = count
        self.status = status
        self.headers = headers or {}
        self.forward = forward
        self.delay_s = delay_s
        self.short = short
        self.seen = 0

    @property
    def only_slow(self) -> bool:
        return self.delay_s > 0 and self.status == 0

    def takes(self, method: str, path: str) -> bool:
        if method != self.method or self.seen >= self.count or not self.pattern.search(path):
            return False
        self.seen += 1
        return True


class FaultProxy:
    """Forwards to the server; ``faults`` are tried in order, the first that matches acts."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.answered_bytes = 0
        """In the bodies of all answers."""

        self._lock = threading.Lock()
        self._listener = _Listener(self)
        self._thread = threading.Thread(target=self._listener.serve_forever, daemon=True)
        self._thread.start()
        self.port: int = self._listener.server_address[1]

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def answered(self, size_bytes: int) -> None:
        with self._lock:
            self.answered_bytes += size_bytes

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            return next((fault for fault in self.faults if fault.takes(method, path)), None)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news: it gave its request up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        proxy = cast(_Listener, self.server).proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = proxy.fault_for(self.command, self.path)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if fault is None or fault.only_slow or fault.short:
            status, headers, answer = self._forward(proxy.server_port, body)
            if fault is not None and fault.short:
                answer = answer[: len(answer) // 2]
            proxy.answered(len(answer))
            self._answer(status, headers, answer)
            return
        if fault.forward:
            self._forward(proxy.server_port, body)
        if fault.status:
            self._answer(fault.status, fault.headers, b"")
        else:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _forward(self, port: int, body: bytes) -> tuple[int, dict[str, str], bytes]:
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            server.request(self.command, self.path, body, dict(self.headers))
            answer = server.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            server.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers.items():
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
