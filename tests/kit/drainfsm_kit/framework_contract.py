"""The contract that drainfsm's hook for a training framework keeps, with the real framework.

A framework plugs in with a driver script (``drainfsm_kit.framework_driver``) and an entry in
``drainfsm_kit.frameworks.FRAMEWORKS``; the scenarios are the same for all.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.framework_driver import Options
from drainfsm_kit.running import TOY_LAUNCHER, Agent, RunningJob, free_port

DRIVERS = Path(__file__).parents[2] / "frameworks" / "drivers"
INSTALLED = "DRAINFSM_TEST_FRAMEWORKS"
"""Environment variable: frameworks that were installed for these tests, by commas."""

SCOPE = "DRAINFSM_TEST_SCOPE"
"""Environment variable: ``whole``, every scenario of each framework; else one."""

PATIENCE_S = 900.0
"""Two Pythons with a framework take minutes to start, on a machine with many guests."""

RANKS = 2
ONLY_DRAINS = CheckpointSettings()
NOTICE_S = 240.0
UNHURRIED = Allowances(
    quiesce_ms=40_000, commit_ms=10_000, exit_margin_ms=60_000, clock_skew_ms=0, barrier_ms=100
)
"""Python with a framework in it takes seconds to end, on a busy machine many."""


class Misuse(NamedTuple):
    """One way to use the hook wrongly, and what it says."""

    error: str
    """Name of the typed error that the ranks end with."""

    says: str
    """A part of its message: what to do."""

    settings: CheckpointSettings = ONLY_DRAINS
    after_drain: bool = False
    """It shows when there is something to restore."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework under test."""

    name: str
    """Of its driver, ``tests/frameworks/drivers/NAME_driver.py``, and of its extra."""

    packages: tuple[str, ...]
    """What must be importable; else its tests are skipped, or fail where they were installed."""

    shardings: tuple[str, ...] = ("ddp", "sharded")
    misuses: Mapping[str, Misuse] = field(default_factory=dict)
    launcher: Callable[[Path, Options], Sequence[str]] | None = None
    """The command of the job, where ranks need a launcher of the framework's own."""

    apart: bool = False
    """Too large for the environment of the others: ``tests/frameworks/run.py --only NAME``."""

    outlives_sigterm: bool = True
    """Its own processes live on when every process of the job gets a SIGTERM."""

    ends_its_ranks: bool = False
    """By force, when training is over: their exit codes say nothing."""

    has_extra: bool = True
    """Its module says which extra installs it."""

    beside: tuple[str, ...] = ()
    """What is installed with it for its tests: no extra brings it."""

    native_exact: bool = True
    """The framework's own resume is bit-exact. Otherwise ours must be as exact as that."""

    def command(self, options: Options, *, by_torchrun: bool = False) -> tuple[str, ...]:
        driver = DRIVERS / f"{self.name}_driver.py"
        if self.launcher is not None:
            return tuple(self.launcher(driver, options))
        script = (str(driver), msgspec.json.encode(options).decode())
        if by_torchrun:
            run = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS))
            return (*run, "--master-port", str(free_port()), *script)
        return (*TOY_LAUNCHER, str(RANKS), sys.executable, *script)

    def run_alone(self, options: Options) -> None:
        """The driver without an agent."""
        done = subprocess.run(
            self.command(options),
            env={**os.environ, **variables()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")


class Point(NamedTuple):
    """Where a notice comes."""

    name: str
    stop_steps: tuple[int, ...]
    """Steps at which the ranks may stop for it."""

    by_signal: bool = False
    """SIGTERM to the agent, torchrun and every rank, in place of ``drainfsm notify``."""


SCENARIOS: dict[str, tuple[Point, ...]] = {
    "middle of an epoch": (Point("batch:0:2", (1,)),),
    "accumulation": (Point("batch:0:9", (4,)),),
    "validation": (Point("validation:1", (2, 3)),),
    "end of an epoch": (Point("batch:0:11", (5,)),),
    "two drains in one epoch": (Point("batch:0:3", (1,)), Point("validation:1", (2, 3))),
    "SIGTERM to every process": (Point("batch:1:5", (8,), by_signal=True),),
}
"""With the options' defaults: 6 steps an epoch, of 2 micro-batches each, a validation after each
third. One notice for each attempt; the last attempt runs to the end."""

QUICK = "two drains in one epoch"
"""What ``make check`` runs of each framework: accumulation, validation, the data's position."""


@dataclass
class Story:
    """A job from its first attempt to its end."""

    framework: Framework
    directory: Path
    job: RunningJob
    sharding: str
    epoch: int = 0
    agents: list[Agent] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.directory / "trace-out"

    def options(self, **more: Any) -> Options:
        return Options(out=str(self.out), sharding=self.sharding, **more)

    def start(
        self,
        options: Options,
        *,
        settings: CheckpointSettings = ONLY_DRAINS,
        by_torchrun: bool = False,
    ) -> Agent:
        self.epoch += 1
        agent = self.job.start(
            self.framework.command(options, by_torchrun=by_torchrun),
            grace_s=NOTICE_S,
            allowances=UNHURRIED,
            checkpoint=settings,
            variables=variables(),
        )
        self.agents.append(agent)
        return agent

    def drain_at(self, point: Point, *, settings: CheckpointSettings = ONLY_DRAINS) -> int:
        """One attempt that is given a notice at this point. Returns the step that was committed."""
        for old in self.out.glob("*-*"):
            old.unlink()
        agent = self.start(
            self.options(pauses=(point.name,)), settings=settings, by_torchrun=point.by_signal
        )
        self.wait_for_ranks_at(point.name)
        if point.by_signal:
            for pid in self.job.processes():
                os.kill(pid, signal.SIGTERM)
        else:
            self.job.notify(in_s=NOTICE_S, native_id=f"notice-{self.epoch}")
        self.job.wait_for(e.StopStepAgreed, epoch=self.epoch)
        self.go(point.name)
        assert agent.wait(PATIENCE_S) == 75, self.told()
        published = self.job.find(e.ManifestPublished, self.epoch)
        assert len(published) == 1, self.told()
        exited = self.job.find(e.Exited, self.epoch)[0]
        assert exited.nodes[0].killed_ranks == (), self.told()
        assert exited.nodes[0].exit_code == 0 or self.framework.ends_its_ranks, self.told()
        return published[0].step

    def run_to_the_end(self, *, settings: CheckpointSettings = ONLY_DRAINS) -> None:
        agent = self.start(self.options(), settings=settings)
        assert agent.wait(PATIENCE_S) == 0, self.told()

    def wait_for_ranks_at(self, point: str) -> None:
        files = [self.out / f"paused-{point}-{rank}" for rank in range(RANKS)]
        self.job.wait(
            lambda: all(file.exists() for file in files) or None, what=f"ranks at {point}"
        )

    def go(self, point: str) -> None:
        (self.out / f"go-{point}").touch()

    def saved_elsewhere(self) -> list[Path]:
        """Files that are neither ours nor in the store: of a saver of the framework's own."""
        ours = re.compile(r"rank\d|(paused|go)-.*")
        found = [path for path in self.out.rglob("*") if path.is_file()]
        return [path for path in found if not ours.fullmatch(path.name)]

    def told(self) -> str:
        kinds = [type(event).__name__ for event in self.job.events(self.epoch)]
        return f"{self.agents[-1].output()}\n{kinds}"


def variables() -> dict[str, str]:
    """Of the ranks: nothing is downloaded, no framework takes all cores, and they find each other
    without torchrun."""
    return {
        "ACCELERATE_TORCH_DEVICE": "cpu",  # it would say cpu:0, which torch cannot load to
        "HF_HUB_OFFLINE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_OFFLINE": "1",
    }


def trace(out: Path, rank: int, *kinds: str) -> list[dict[str, Any]]:
    """The lines of these kinds that a rank wrote, over all attempts."""
    path = out / f"rank{rank}"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["what"] in kinds]


def difference(out: Path, whole: Path, *kinds: str, tail: bool = False) -> str:
    """Where the traces of two jobs differ first, on any rank; empty: nowhere. ``tail``: the first
    one has only the last lines of it."""
    for rank in range(RANKS):
        ours, theirs = trace(out, rank, *kinds), trace(whole, rank, *kinds)
        if tail:
            theirs = theirs[-len(ours) :] if ours else theirs
        for line, (one, other) in enumerate(zip_longest(ours, theirs)):
            if one != other:
                return f"rank {rank}, line {line}: {one} in place of {other}"
    return ""
