"""One ``drainfsm run`` as a process, for end-to-end tests."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

CLOCK_OFF_MS = "CLOCK_OFF_MS"
"""Environment variable of an agent: a file that says how far its wall clock is ahead."""

WAIT_S = 120.0
"""Generous: it finds what hangs, on a machine with many guests, and measures nothing."""

_MAIN = """
import os, resource, sys
from drainfsm_kit import crashing
crashing.install("agent" + os.environ["NODE_RANK"])
if file := os.environ.get("CLOCK_OFF_MS"):
    import time
    right = time.time_ns
    time.time_ns = lambda: right() + int(open(file).read()) * 1_000_000
import msgspec
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.agent.process import run_process
config = msgspec.json.decode(sys.argv[1], type=RunConfig, dec_hook=lambda type_, text: type_(text))
if limit := int(sys.argv[2]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
run_process(config)
"""


class Agent:
    """One ``drainfsm run`` process."""

    def __init__(
        self,
        directory: Path,
        config: dict[str, object],
        variables: dict[str, str],
        file_bytes_max: int,
        stderr: int | None = None,
    ) -> None:
        """``stderr``: a descriptor for it, which is not read here; -1: it is closed."""
        self._log = directory / f"agent-{secrets.token_hex(4)}.log"
        text = msgspec.json.encode(config).decode()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, text, str(file_bytes_max)],
                stdout=log,
                stderr=subprocess.STDOUT if stderr in (None, -1) else stderr,
                preexec_fn=(lambda: os.close(2)) if stderr == -1 else None,
                env={**os.environ, **variables},
                start_new_session=True,
            )

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, wait_s: float = WAIT_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent does not end; it said:\n{self.output()}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
