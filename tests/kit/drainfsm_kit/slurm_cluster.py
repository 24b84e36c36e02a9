"""A real Slurm cluster of virtual nodes on this machine, and jobs on it. Needs root."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from drainfsm_kit.running import TOY_LAUNCHER, RunningJob
from drainfsm_kit.toy_rank import TOY_PORT

R = TypeVar("R")

WAIT_S = 120.0
COMMAND_S = 60.0
STOP_S = 180.0
POLL_S = 0.1
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))

NODE_OF_STEP = 'NODE_RANK=$SLURM_NODEID NNODES=$SLURM_NNODES exec "$@"'
"""What the launcher of toy ranks wants to know."""

QUICK = {
    "DRAINFSM_QUIESCE_MS": "1500",
    "DRAINFSM_COMMIT_MS": "800",
    "DRAINFSM_EXIT_MARGIN_MS": "1000",
    "DRAINFSM_CLOCK_SKEW_MS": "0",
    "DRAINFSM_BARRIER_MS": "100",
    "DRAINFSM_SCHEDULE_SLACK_MS": "3000",
}
"""Small reserves, so that the five seconds between SIGTERM and SIGKILL are enough for a save."""


def missing_programs() -> list[str]:
    """What has to be installed before a cluster can be started; also the right to do so."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return missing if os.getuid() == 0 else [*missing, "root"]


class Cluster:
    """The nodes are ``nodes``; partitions ``main`` (never preempted), ``low`` and ``lowcancel``."""

    def __init__(self, directory: Path, scripts: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self._scripts = scripts
        self.environment = {**os.environ, "PATH": PATH, **settings}
        said = self.run(str(scripts / "start-slurm"), str(directory), timeout_s=180)
        self.environment["SLURM_CONF"] = said.rpartition("=")[2].strip()
        self.environment["SLURM_TIME_FORMAT"] = "%s"
        self.nodes = sorted(set(self.run("sinfo", "-h", "-N", "-o", "%N").split()))

    def run(
        self,
        *command: str,
        timeout_s: float = COMMAND_S,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Its output; a test fails with it."""
        done = subprocess.run(
            command,
            env={**self.environment, **(variables or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}: {done.stderr}")
        return done.stdout

    def job(
        self, script: Path, *arguments: str, ranks: int = 1, toy: Sequence[str] = (), **options: str
    ) -> SlurmJob:
        """Submit it. ``arguments``: of the script; empty: toy ranks, so many on each node."""
        return SlurmJob(self, script, arguments, options, ranks=ranks, toy=toy)

    def field(self, job_id: str, name: str) -> str:
        """Of the job's record, as it is now."""
        shown = self.run("scontrol", "-o", "show", "job", job_id)
        line = next(line for line in shown.splitlines() if line.startswith(f"JobId={job_id} "))
        found = re.search(rf" {name}=(\S*)", line)
        return found[1] if found else ""

    def wait(self, found: Callable[[], R | None], *, what: str, timeout_s: float = WAIT_S) -> R:
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            if result := found():
                return result
            time.sleep(POLL_S)
        raise AssertionError(f"no {what}\n{self.run('squeue', '-l')}")

    def wait_idle(self) -> None:
        """Until no job holds a node, and every node takes jobs."""
        jobs = self.run("squeue", "-h", "-o", "%i").split()
        if jobs:
            self.run("scancel", *jobs)

        def idle() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
            return set(states) == {"idle"}

        for node in self.nodes:
            if "DRAIN" in self.run("scontrol", "-o", "show", "node", node):
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
        self.wait(idle, what="idle cluster")

    def restart_daemons(self) -> None:
        """Whatever has been killed, or stopped."""
        self.run(str(self._scripts / "start-slurm"), str(self.directory), timeout_s=180)

    def daemon_pid(self, name: str) -> int:
        """``slurmctld``, or ``slurmd.NODE``."""
        return int((self.directory / "run" / f"{name}.pid").read_text())


class SlurmJob:
    """One drainfsm job, submitted as a batch script. ``seen`` reads its journals."""

    def __init__(
        self,
        cluster: Cluster,
        script: Path,
        arguments: tuple[str, ...],
        options: dict[str, str],
        *,
        ranks: int,
        toy: Sequence[str],
    ) -> None:
        """``options``: of sbatch, and variables for the job where the name is in upper case.
        ``job_name=""``: none is given, as a first user does it.
        ``{trace}`` in an argument is where toy ranks leave their steps."""
        self.cluster = cluster
        self.directory = Path(tempfile.mkdtemp(prefix="dfs-", dir=cluster.directory))
        self.seen = RunningJob(self.directory)
        self.seen.job = f"job-{secrets.token_hex(4)}"
        self.output_file = self.directory / "output"
        trace = str(self.seen.trace)
        given = (argument.replace("{trace}", trace) for argument in arguments)
        self.command = (str(script), *(given if arguments else self._toys(ranks, toy)))
        variables = {
            **QUICK,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}",
            "HEAD": "127.0.0.1",
            "STORE": str(self.seen.store),
            "DRAINFSM_STATE_DIR": str(self.seen.state_dir),
            "DRAINFSM_NATS": self.seen.nats,
            TOY_PORT: str(_port()),
            **{name: value for name, value in options.items() if name.isupper()},
        }
        flags = {name: value for name, value in options.items() if not name.isupper()}
        if "job_name" in flags:  # the scripts write it as `--job` takes it
            self.seen.job = re.sub(r"[^A-Za-z0-9_-]", "-", flags["job_name"] or script.name)[:64]
        else:
            flags["job_name"] = self.seen.job
        if not flags["job_name"]:
            del flags["job_name"]
        said = cluster.run(
            "sbatch",
            "--parsable",
            f"--output={self.output_file}",
            *(f"--{name.replace('_', '-')}{value and '='}{value}" for name, value in flags.items()),
            *self.command,
            variables=variables,
        )
        self.job_id = said.strip()

    def _toys(self, ranks: int, toy: Sequence[str]) -> tuple[str, ...]:
        command = self.seen.toy("--step-s", "0.05", *toy)
        launcher = (*TOY_LAUNCHER, str(ranks))
        return ("bash", "-c", NODE_OF_STEP, "toy", *launcher, *command)

    def field(self, name: str) -> str:
        return self.cluster.field(self.job_id, name)

    def output(self) -> str:
        return self.output_file.read_text() if self.output_file.exists() else ""

    def wait_state(self, *states: str, timeout_s: float = WAIT_S) -> str:
        return self.cluster.wait(
            lambda: state if (state := self.field("JobState")) in states else None,
            what=f"{' or '.join(states)} of job {self.job_id}; it said:\n{self.output()}",
            timeout_s=timeout_s,
        )

    def wait_steps(self, count: int, *, epoch: int = 1, rank: int = 0) -> None:
        self.cluster.wait(
            lambda: len(self.seen.steps(rank, epoch)) >= count,
            what=f"{count} steps in epoch {epoch}; the job said:\n{self.output()}",
        )

    def cancel(self) -> None:
        self.cluster.run("scancel", self.job_id)


def _port() -> int:
    """Free, and none that the kernel hands out: the job needs it only in a while."""
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def running_cluster(scripts: Path, **settings: str) -> Iterator[Cluster]:
    """``settings``: variables of ``start-slurm``."""
    directory = Path(tempfile.mkdtemp(prefix="dfs-", dir="/tmp"))
    try:
        yield Cluster(directory, scripts, settings)
    finally:
        stop = (str(scripts / "stop-slurm"), str(directory))
        subprocess.run(stop, timeout=STOP_S, check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(directory, ignore_errors=True)
