"""What agent and rank client cost while nothing happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.attempts import Job
from bench.harness import Case, Size, Topic, at_most
from bench.processes import children, command, cpu_ms, resident_mib
from drainfsm.testing.running import pids_with

WINDOW_S = 2.0

CLIENT = """
import resource, socket, sys, time
def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
before = resident_mib()
from bench.stop import attached
with attached() as session:
    grown, cpu = resident_mib() - before, time.process_time()
    time.sleep(float(sys.argv[1]))
    print(grown, (time.process_time() - cpu) * 1e3 / float(sys.argv[1]))
"""


class Paused:
    """A training job that runs only while it is measured."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.job = Job(kind, directory / kind)
        self.job.start()
        self.job.wait_for_steps(5)
        self._signal(signal.SIGSTOP)

    def step_ms(self) -> float:
        self._signal(signal.SIGCONT)
        first = len(self.job.steps_done())
        time.sleep(WINDOW_S)
        self._signal(signal.SIGSTOP)
        done = self.job.steps_done()[first:]
        return (done[-1][1] - done[1][1]) / 1e6 / (len(done) - 2)

    def close(self) -> None:
        self.job.kill()

    def _signal(self, number: int) -> None:
        for pid in pids_with(self.job.mark):
            os.kill(pid, number)


class Idle:
    """Agent and server of a job, watched while it trains."""

    def __init__(self, paused: Paused) -> None:
        self._paused = paused
        assert paused.job.process is not None
        self.agent = paused.job.process.pid
        self.server = next(pid for pid in children(self.agent) if "nats-server" in command(pid))
        self.found: dict[str, float] = {}

    def step_ms(self) -> float:
        before = cpu_ms(self.agent), cpu_ms(self.server)
        taken = self._paused.step_ms()
        self.found = {
            "agent: CPU": (cpu_ms(self.agent) - before[0]) / WINDOW_S,
            "nats-server: CPU": (cpu_ms(self.server) - before[1]) / WINDOW_S,
            "agent: MiB": resident_mib(self.agent),
            "nats-server: MiB": resident_mib(self.server),
        }
        return taken

    def value(self, name: str) -> float:
        return self.found[name]


class Client:
    def __init__(self) -> None:
        self.cpu = 0.0

    def measure(self) -> float:
        arguments = [sys.executable, "-c", CLIENT, str(WINDOW_S)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        grown, self.cpu = (float(word) for word in done.stdout.split())
        return grown


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        jobs = {}
        for kind in ("bare", "plain", "drainfsm"):
            jobs[kind] = Paused(kind, Path(directory))
            stack.callback(jobs[kind].close)
        idle, client = Idle(jobs["drainfsm"]), Client()
        cases: dict[str, Case] = {
            "a step, nobody asks: ms": jobs["bare"].step_ms,
            "a step, drainfsm: ms": idle.step_ms,
            "a step, all_reduce of a flag: ms": jobs["plain"].step_ms,
            "rank client: MiB": client.measure,
            "rank client: CPU": lambda: client.cpu,
        }
        for name in ("agent: CPU", "agent: MiB", "nats-server: CPU", "nats-server: MiB"):
            cases[name] = partial(idle.value, name)
        yield cases


TOPIC = Topic(
    name="rest",
    title="At rest: memory, CPU, and what training pays",
    unit="ms a step; MiB; CPU ms a second",
    note="Three jobs of two ranks; two are stopped while the third is measured. The rank client's "
    "memory is what importing it and attaching adds to a bare interpreter, without torch.",
    open=opened,
    quick=False,
    ratios=(
        at_most("REST", "training under drainfsm, beside training that asks nobody",
                "a step, drainfsm: ms", "a step, nobody asks: ms", goal=1.02, gate=1.25),
        at_most("REST", "training that all_reduces a flag, beside the same",
                "a step, all_reduce of a flag: ms", "a step, nobody asks: ms"),
    ),
)  # fmt: skip
