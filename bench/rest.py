"""What agent and rank client cost while nothing happens."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.attempts import Job
from bench.harness import Case, Size, Topic, at_most
from bench.processes import children, command, cpu_ms, resident_mib
from drainfsm_kit.marks import pids_with

WINDOW_S = 1.0

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

    def steps_ms(self) -> list[float]:
        """How long the steps of one window took, the first two left out."""
        self._signal(signal.SIGCONT)
        first = len(self.job.steps_done())
        time.sleep(WINDOW_S)
        self._signal(signal.SIGSTOP)
        ends = [at_ns for _, at_ns in self.job.steps_done()[first + 1 :]]
        return [(end - begin) / 1e6 for begin, end in pairwise(ends)]

    def close(self) -> None:
        self.job.kill()

    def _signal(self, number: int) -> None:
        for pid in pids_with(self.job.mark):
            os.kill(pid, number)


class Turns:
    """The jobs in turn, each turn in another order; agent and server are watched meanwhile."""

    def __init__(self, jobs: dict[str, Paused]) -> None:
        self._jobs = jobs
        agent = jobs["drainfsm"].job.process
        assert agent is not None
        self.agent = agent.pid
        self.server = next(pid for pid in children(self.agent) if "nats-server" in command(pid))
        self.found: dict[str, float] = {}

    def measure(self) -> float:
        before = cpu_ms(self.agent), cpu_ms(self.server)
        taken: dict[str, list[float]] = {kind: [] for kind in self._jobs}
        kinds = list(self._jobs)
        for turn in range(len(kinds)):
            for kind in kinds[turn:] + kinds[:turn]:
                taken[kind] += self._jobs[kind].steps_ms()
        running_s = WINDOW_S * len(kinds)
        self.found = {kind: statistics.median(steps) for kind, steps in taken.items()} | {
            "agent: CPU": (cpu_ms(self.agent) - before[0]) / running_s,
            "nats-server: CPU": (cpu_ms(self.server) - before[1]) / running_s,
            "agent: MiB": resident_mib(self.agent),
            "nats-server: MiB": resident_mib(self.server),
        }
        return self.found["bare"]

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
        turns, client = Turns(jobs), Client()
        cases: dict[str, Case] = {
            "a step, nobody asks: ms": turns.measure,
            "a step, drainfsm: ms": partial(turns.value, "drainfsm"),
            "a step, all_reduce of a flag: ms": partial(turns.value, "plain"),
            "rank client: MiB": client.measure,
            "rank client: CPU": lambda: client.cpu,
        }
        for name in ("agent: CPU", "agent: MiB", "nats-server: CPU", "nats-server: MiB"):
            cases[name] = partial(turns.value, name)
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
