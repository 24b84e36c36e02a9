"""What an agent costs that waits: beside a process that only sleeps, in the same window."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_most
from drainfsm.testing.metadata import AwsMetadataServer

WINDOW_S = 10
SETTLE_S = 15
AGENTS = 8
LOOP = "a sleep loop, one wake-up a second"
ALONE, AWS = "agent, no source", "agent, --source aws"
AWAY = "agent, no source, its NATS server away"
NOBODY = "nats://127.0.0.1:9"
EIGHT = f"one of {AGENTS} agents on this machine, no source"
SLEEP = "import time\nwhile True: time.sleep(1)"


def _cpu_s(pid: int) -> float:
    """CPU time of another process, to the nanosecond (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


class Waiting:
    """Everything at once: one window is measured for all."""

    def __init__(self, processes: dict[str, list[int]]) -> None:
        self._processes = processes
        self.found: dict[str, float] = {}

    def measure(self) -> float:
        before = {name: sum(map(_cpu_s, pids)) for name, pids in self._processes.items()}
        time.sleep(WINDOW_S)
        self.found = {
            name: (sum(map(_cpu_s, pids)) - before[name]) / len(pids) / WINDOW_S * 100
            for name, pids in self._processes.items()
        }
        return self.found[LOOP]


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(AwsMetadataServer())
        endpoint = {server.variable: server.endpoint}
        begun = {
            LOOP: [_started(stack, (sys.executable, "-c", SLEEP), {})],
            ALONE: [_agent(stack, directory / "alone")],
            AWS: [_agent(stack, directory / "aws", "--source", "aws", variables=endpoint)],
            AWAY: [_agent(stack, directory / "away", "--nats", NOBODY)],
            EIGHT: [_agent(stack, directory / f"eight{n}") for n in range(AGENTS)],
        }
        time.sleep(SETTLE_S)
        waiting = Waiting(begun)
        yield {LOOP: waiting.measure} | {
            name: partial(lambda name: waiting.found[name], name)
            for name in (ALONE, AWS, AWAY, EIGHT)
        }


def _agent(
    stack: ExitStack, directory: Path, *options: str, variables: dict[str, str] | None = None
) -> int:
    directory.mkdir()
    paths = ("--store", str(directory / "store"), "--state-dir", str(directory / "state"))
    command = (sys.executable, "-m", "drainfsm", "run", "--job", directory.name, *paths, *options)
    return _started(stack, (*command, "--", "sleep", "100000"), variables or {})


def _started(stack: ExitStack, command: tuple[str, ...], variables: dict[str, str]) -> int:
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


TOPIC = Topic(
    name="idle",
    title="An agent that waits",
    unit="% of a core",
    open=opened,
    ratios=(
        at_most(
            "REST", "agent without a source, beside a sleep loop", ALONE, LOOP, goal=25, gate=60
        ),
        at_most(
            "REST", "agent with --source aws, beside a sleep loop", AWS, LOOP, goal=50, gate=120
        ),
        at_most(
            "REST", "agent whose server is away, beside a sleep loop", AWAY, LOOP, goal=25, gate=60
        ),
        at_most("REST", "one of eight agents, beside a sleep loop", EIGHT, LOOP, goal=25, gate=60),
    ),
    quick=False,
    warm_up=False,
    note="Each agent has the default embedded NATS server, whose own CPU time is not in it. The "
    "goals are 0.1 % of a core, with `--source aws` 0.2 %, where the loop takes 0.004 %.",
)
