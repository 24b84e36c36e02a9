"""``examples/``, run as their README says: a user's terminal, and what is said in it."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drainfsm_kit.agent_process import WAIT_S, free_port
from drainfsm_kit.marks import MARK, pids_with

ROOT = Path(__file__).parents[3]
README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
POLL_S = 0.05
STEPS_FIRST = 5
"""So many are trained before the notice."""


def command_of(example: str) -> str:
    """The last column of its row."""
    row = re.search(rf"^\| \[{re.escape(example)}\].*\| `(.*)` \|$", README, re.MULTILINE)
    assert row is not None, example
    return row[1]


PROGRAMS = {"drainfsm": "-m drainfsm", "torchrun": "-m torch.distributed.run", "python": ""}


def _programs(folder: Path) -> Path:
    """Those of the environment that the tests run in, which may lie over another one's."""
    folder.mkdir()
    for name, module in PROGRAMS.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        program.chmod(0o700)
    return folder


class Shell:
    """A user's terminal at the root of the repository: what is run in it, and what that says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = secrets.token_hex(8)
        self.environment = {
            **{name: text for name, text in os.environ.items() if "DRAINFSM" not in name},
            MARK: self.mark,
            "PATH": f"{_programs(directory / 'bin')}{os.pathsep}{os.environ['PATH']}",
            "STORE": str(directory / "store"),
            "STATE": str(directory / "pair"),
            "DRAINFSM_STATE_DIR": str(directory / "state"),
            "HEAD": f"127.0.0.1:{free_port()}",
            "PORT": str(free_port()),
        }
        (directory / "store").mkdir()

    @contextmanager
    def run(self, command: str) -> Iterator[Run]:
        log = self.directory / f"said-{secrets.token_hex(4)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}" if command[0].islower() else command],
                cwd=ROOT,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Run(process, log)
        finally:
            for pid in pids_with(f"\0{MARK}={self.mark}\0"):
                os.kill(pid, signal.SIGKILL)
            process.wait()

    def notify(self, job: str) -> None:
        command = [sys.executable, "-m", "drainfsm", "notify", "--job", job, "--in", "60"]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)


class Run:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def steps(self) -> list[int]:
        """That it has printed: of all ranks."""
        # two ranks share a pipe: the end of a line may come after another one has begun
        return [
            int(step) for step in re.findall(r"(?:^|\])step (\d+)\b", self.output(), re.MULTILINE)
        ]

    def wait(self, found: Callable[[], object], *, what: str) -> None:
        give_up = time.monotonic() + WAIT_S
        while not found():
            assert time.monotonic() < give_up, f"no {what}; it said:\n{self.output()}"
            assert self.process.poll() is None, f"it ended before {what}:\n{self.output()}"
            time.sleep(POLL_S)

    def train(self) -> None:
        self.wait(lambda: len(set(self.steps())) >= STEPS_FIRST, what="first steps")

    def end(self) -> int:
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end; it said:\n{self.output()}") from None


def drained(shell: Shell, command: str, notice: Callable[[Run], None]) -> tuple[list[int], str]:
    """One run of it, ended by a notice: the steps that it has printed, and all else."""
    with shell.run(command) as run:
        run.train()
        notice(run)
        assert run.end() == 75, run.output()
        return run.steps(), run.output()
