"""From the agent's message to the training loop's flag (G11)."""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.harness import Case, Size, Topic, at_most
from bench.stop import listen
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import encode_frame

PAUSE_S = (0.002, 0.010)
"""Before each message, so that it meets a step anywhere."""


class Rank:
    """The process that trains, and the three ways to tell it something."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.p50_us: dict[str, float] = {}
        self.p25_us: dict[str, float] = {}
        self._chance = random.Random(7)
        self._agent, session = socket.socketpair()
        self._raw, raw = socket.socketpair()
        command = [sys.executable, "-m", "bench.notice_rank"]
        self._process = subprocess.Popen(
            [*command, str(session.fileno()), str(raw.fileno())],
            pass_fds=(session.fileno(), raw.fileno()),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        session.close()
        raw.close()
        threading.Thread(target=listen, args=(self._agent,), daemon=True).start()
        assert self._line() == "ready"

    def close(self) -> None:
        self._agent.sendall(encode_frame(m.Leave(at_step=None)))
        self._line()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._agent.close()
        self._raw.close()

    def order(self) -> None:
        self._agent.sendall(encode_frame(m.Hold()))

    def byte(self) -> None:
        self._raw.sendall(b"x")

    def signal(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def all_ways(self) -> float:
        """Turn by turn: a neighbour's short burst of work meets all of them."""
        ways = {"order": self.order, "byte": self.byte, "signal": self.signal}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.times):
            for name, tell in ways.items():
                taken[name].append(self._once(tell))
        self.p50_us = {name: statistics.median(values) for name, values in taken.items()}
        self.p25_us = {name: statistics.quantiles(values)[0] for name, values in taken.items()}
        return self.p50_us["order"]

    def _once(self, tell: Callable[[], None]) -> float:
        time.sleep(self._chance.uniform(*PAUSE_S))
        told = time.monotonic_ns()
        tell()
        seen = int(self._line())
        if tell == self.order:
            self._agent.sendall(encode_frame(m.Resume()))
        assert self._process.stdin is not None
        self._process.stdin.write("on\n")
        self._process.stdin.flush()
        assert self._line() == "on"
        return (seen - told) / 1e3

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise AssertionError(f"the rank died: {self._process.wait()}")
        return line


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    rank = Rank(size.pick(60, 30))
    yield {
        "drainfsm: an order by the agent": rank.all_ways,
        "raw reader thread: one byte": lambda: rank.p50_us["byte"],
        "signal": lambda: rank.p50_us["signal"],
        "an order, lower quartile": lambda: rank.p25_us["order"],
        "one byte, lower quartile": lambda: rank.p25_us["byte"],
    }
    rank.close()


TOPIC = Topic(
    name="notice",
    title="From the agent's order to the training loop's flag",
    unit="us, p50 of a round",
    note="Between two processes; the rank computes small torch steps all the while. The raw reader "
    "is a thread that blocks in recv(1) and sets an attribute.",
    open=opened,
    ratios=(
        at_most("G11", "beside a raw reader thread (floor)", "drainfsm: an order by the agent",
                "raw reader thread: one byte", goal=1.5),
        at_most("G11", "the same, lower quartiles: what a busy machine disturbs least",
                "an order, lower quartile", "one byte, lower quartile", gate=5),
        at_most("G11", "beside a signal", "drainfsm: an order by the agent", "signal"),
    ),
)  # fmt: skip
