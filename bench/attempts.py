"""One job of ``bench.training``, attempt after attempt, as a scheduler would start and end it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from drainfsm.store import open_store
from drainfsm.store.commits import CommitLog
from drainfsm_kit.marks import pids_with

WORLD_SIZE = 2
STEPS_MAX = 1_000_000
WAIT_S = 90.0
POLL_S = 0.005
JOB = "bench"


class Job:
    """``kind``: ``drainfsm`` or ``plain``."""

    def __init__(
        self, kind: str, directory: Path, *, every: int = 0, steps: int = STEPS_MAX
    ) -> None:
        self.kind, self.directory, self.every, self.steps = kind, directory, every, steps
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "steps").touch()
        self.mark = f"BENCH_JOB={secrets.token_hex(8)}"
        self.process: subprocess.Popen[bytes] | None = None
        self.started_ns = 0

    def start(self) -> None:
        (self.directory / "steps").write_text("")
        ranks = [sys.executable, "-m", "bench.launcher", str(WORLD_SIZE)]
        ranks += [sys.executable, "-m", "bench.training", self.kind, str(self.directory)]
        ranks += [str(self.steps), str(self.every)]
        agent = [sys.executable, "-m", "drainfsm", "run", "--job", JOB]
        agent += ["--store", str(self.store), "--state-dir", str(self.directory / "state")]
        agent += ["--every-steps", str(self.every), "--grace", "60", "--"]
        name, _, value = self.mark.partition("=")
        self.started_ns = time.time_ns()
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                agent + ranks if self.kind == "drainfsm" else ranks,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, name: value},
                start_new_session=True,
            )

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def steps_done(self) -> list[tuple[int, int]]:
        """(step, when) of the present attempt."""
        lines = (self.directory / "steps").read_text().splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(step), int(at_ns)) for step, at_ns in whole]

    def wait_for_steps(self, count: int) -> list[tuple[int, int]]:
        return self._wait(lambda: self._enough_steps(count), f"{count} steps")

    def _enough_steps(self, count: int) -> list[tuple[int, int]] | None:
        done = self.steps_done()
        if len(done) >= count:
            return done
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the job ended: {self.log_tail()}")
        return None

    def tell(self) -> int:
        """SIGTERM, as a scheduler sends it. When."""
        assert self.process is not None
        at_ns = time.time_ns()
        self.process.send_signal(signal.SIGTERM)
        return at_ns

    def kill(self) -> None:
        """The node is gone: every process of the job at once."""
        for pid in pids_with(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        self._wait(lambda: None if pids_with(self.mark) else True, "no process left")

    def committed(self) -> tuple[int, int] | None:
        """(step, when) of what a restart would load."""
        if self.kind == "plain":
            latest = self.directory / "latest"
            if not latest.exists():
                return None
            step = int(latest.read_text().removeprefix("step-") or -1)
            return step, latest.stat().st_mtime_ns
        commits = list(CommitLog(open_store(str(self.store)), job_id=JOB).commits())
        if not commits:
            return None
        slot, commit = commits[-1]
        return commit.step, (self.store / f"commits/{slot:08d}.json").stat().st_mtime_ns

    def leftovers(self) -> int:
        """Directories of saves that nothing names: what a person must sort out, or ``gc``."""
        if self.kind == "plain":
            named = (self.directory / "latest").read_text() if self.committed() else ""
            saves = self.directory.glob("step-*")
            return sum(path.name != named and not (path / ".metadata").exists() for path in saves)
        log = CommitLog(open_store(str(self.store)), job_id=JOB)
        named_ids = {commit.generation_id for _, commit in log.commits()}
        return sum(path.name not in named_ids for path in self.store.glob("generations/*"))

    def log_tail(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2_000:]

    def _wait(self, probe: Callable[[], object], what: str) -> list[tuple[int, int]]:
        give_up = time.monotonic() + WAIT_S
        while (found := probe()) is None:
            if time.monotonic() > give_up:
                raise AssertionError(f"{self.kind}: waited in vain for {what}: {self.log_tail()}")
            time.sleep(POLL_S)
        return found  # type: ignore[return-value]
