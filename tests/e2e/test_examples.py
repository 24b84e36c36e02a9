"""``examples/``: each is run by the command of its README, drained, and run by it again."""

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
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from drainfsm_kit.agent_process import WAIT_S, free_port
from drainfsm_kit.marks import MARK, pids_with
from drainfsm_kit.running import DRAINFSM

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
POLL_S = 0.05
STEPS_FIRST = 5
"""So many are trained before the notice."""


def command_of(example: str) -> str:
    """The last column of its row."""
    row = re.search(rf"^\| \[{re.escape(example)}\].*\| `(.*)` \|$", README, re.MULTILINE)
    assert row is not None, example
    return row[1]


class Shell:
    """A user's terminal at the root of the repository: what is run in it, and what that says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = secrets.token_hex(8)
        self.environment = {
            **{name: text for name, text in os.environ.items() if "DRAINFSM" not in name},
            MARK: self.mark,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
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
        command = [*DRAINFSM, "notify", "--job", job, "--in", "60"]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)


class Run:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def steps(self) -> list[int]:
        """That it has printed: of all ranks."""
        return [int(step) for step in re.findall(r"^step (\d+)\b", self.output(), re.MULTILINE)]

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


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def drained(shell: Shell, command: str, notice: Callable[[Run], None]) -> tuple[list[int], str]:
    """One run of it, ended by a notice: the steps that it has printed, and all else."""
    with shell.run(command) as run:
        run.train()
        notice(run)
        assert run.end() == 75, run.output()
        return run.steps(), run.output()


@pytest.mark.parametrize("example", ["minimal.py", "own_checkpoint.py"])
def test_a_loop_of_one_process(shell: Shell, example: str) -> None:
    command = command_of(example)
    job = re.findall(r"--job (\S+)", command)[0]
    first, _ = drained(shell, command, lambda run: shell.notify(job))
    second, _ = drained(shell, command, lambda run: shell.notify(job))
    assert first + second == list(range(len(first + second)))


def test_two_ranks_of_ddp_see_every_sample_once(shell: Shell) -> None:
    command = command_of("ddp_dataloader.py")
    said = [drained(shell, command, lambda run: shell.notify("ddp")) for _ in range(2)]
    trained = [sorted(steps) for steps, _ in said]
    assert trained[0] + trained[1] == sorted([*range(trained[1][-1] + 1)] * 2), "by two ranks"
    lines = "".join(text for _, text in said)
    samples = [
        int(sample)
        for batch in re.findall(r"samples \[(.*)\]", lines)
        for sample in batch.split(", ")
    ]
    assert len(samples) == len(set(samples)) == 4 * len(trained[0] + trained[1])


def test_fsdp2_goes_on_with_another_number_of_ranks(shell: Shell) -> None:
    command = command_of("fsdp2_reshard.py")
    first, _ = drained(shell, command, lambda run: shell.notify("fsdp2"))
    alone = command.replace("--nproc-per-node 2", "--nproc-per-node 1")
    second, text = drained(shell, alone, lambda run: shell.notify("fsdp2"))
    assert first + second == list(range(len(first + second)))
    assert f"step {second[0]} ranks 1 parameters" in text


def test_an_adapter_that_is_a_file(shell: Shell) -> None:
    command = command_of("adapter/")
    window = shell.directory / "store" / "window"

    def ends_soon(run: Run) -> None:
        window.write_text((datetime.now(UTC) + timedelta(seconds=60)).isoformat())

    first, _ = drained(shell, command, ends_soon)
    assert window.with_suffix(".cordoned").exists()
    assert window.with_suffix(".left").read_text() == "requeue True\n"
    window.unlink()
    second, _ = drained(shell, command, ends_soon)
    assert first + second == list(range(len(first + second)))


def test_a_launcher_of_your_own(shell: Shell) -> None:
    command = command_of("launcher.py")
    first, text = drained(shell, command, lambda run: run.process.terminate())
    assert text.endswith(f"exited, step {first[-1]} is saved\n")
    second, _ = drained(shell, command, lambda run: run.process.terminate())
    assert first + second == list(range(len(first + second)))


def test_two_machines_with_a_supervisor_each(shell: Shell) -> None:
    """A drain that the job itself is told of: both supervisors start it again. Then a notice to
    both, after which they start nothing."""
    command = command_of("two_machines.sh").replace("STORE=$STORE/pair ", "STORE=$STORE/pair exec ")
    with shell.run(command) as run:
        run.train()
        state = str(shell.directory / "pair" / "1")
        notify = [*DRAINFSM, "notify", "--job", "pair", "--state-dir", state, "--in", "60"]
        subprocess.run(notify, env=shell.environment, check=True, capture_output=True)
        run.wait(lambda: "the job resumes after step" in run.output(), what="second attempt")
        resumed = int(re.findall(r"resumes after step (\d+)", run.output())[0]) + 1
        run.wait(lambda: run.steps().count(resumed) == 2, what="step after the saved one")
        assert run.steps().count(resumed - 1) == 2, "it was trained by both ranks, and once"
        run.process.terminate()
        assert run.end() == 75, run.output()


def test_every_example_is_in_the_table() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", README))
    tops = {path.name for path in (ROOT / "examples").iterdir()} - {"README.md", "__pycache__"}
    assert {link.partition("/")[0] for link in listed} >= tops
    for link in listed:
        assert (ROOT / "examples" / link).exists()
