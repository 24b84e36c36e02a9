"""Two agents with two ranks each on this machine, as if they were two nodes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from drainfsm.drills.job import outside_any_job

JOB = "demo"
NODE_COUNT = 2
RANKS_PER_NODE = 2

CONFIG = """\
job = {job}
store = {store}
state_dir = {state_dir}
cordon = "command"
token = "demo"

[allowances]
quiesce_ms = 4000
commit_ms = 2000
exit_margin_ms = 5000
clock_skew_ms = 250

[checkpoint]
every_steps = {every_steps}
verify = "checksums"

[adapters.command]
cordon = 'touch "cordoned/$DEMO_NODE"'
"""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one demo lies below one directory."""

    root: Path
    job: str = JOB

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    @property
    def losses(self) -> Path:
        return self.root / f"{self.job}-losses.jsonl"

    @property
    def cordoned(self) -> Path:
        return self.root / "cordoned"

    @property
    def config(self) -> Path:
        return self.root / "drainfsm.toml"

    def prepare(self, *, every_steps: int) -> None:
        for directory in (self.store, self.state_dir, self.cordoned):
            directory.mkdir(parents=True, exist_ok=True)
        text = CONFIG.format(
            job=json.dumps(self.job),
            store=json.dumps(str(self.store)),
            state_dir=json.dumps(str(self.state_dir)),
            every_steps=every_steps,
        )
        self.config.write_text(text)

    def last_step(self) -> int:
        """Last step that rank 0 wrote a loss of; -1: none."""
        lines = self.losses.read_text().splitlines() if self.losses.exists() else []
        return int(json.loads(lines[-1])["step"]) if lines else -1


class DemoAttempt:
    """One start of the job: ``drainfsm run`` on each node, each with torchrun inside."""

    def __init__(self, place: Place, *, number: int, nats_url: str, training: list[str]) -> None:
        self.place = place
        self.number = number
        self.nodes = ["node-0", f"node-{number}"]
        """Node 1 of each attempt is the one that must leave: the next one gets another."""

        self.exited_unix_ms = 0
        self._nats_url = nats_url
        self._training = training
        self._agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for name in self.nodes:
            if (self.place.cordoned / name).exists():
                raise AssertionError(f"{name} is cordoned")
        coordinator, rendezvous = _free_port(), _free_port()
        for node in range(NODE_COUNT):
            self._agents.append(self._start_agent(node, coordinator, rendezvous))

    def _start_agent(self, node: int, coordinator: int, rendezvous: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "drainfsm", "run"]
        command += ["--config", str(self.place.config), "--nats", self._nats_url]
        command += ["--nnodes", str(NODE_COUNT), "--node-rank", str(node)]
        command += ["--coordinator", f"127.0.0.1:{coordinator}", "--"]
        command += [sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", str(NODE_COUNT), "--node-rank", str(node)]
        command += ["--nproc-per-node", str(RANKS_PER_NODE)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(rendezvous)]
        command += self._training
        environment = {**outside_any_job(), "DEMO_NODE": self.nodes[node], "OMP_NUM_THREADS": "1"}
        with (self.place.root / f"attempt-{self.number}-node-{node}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self.place.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def notify(self, *, in_s: float, node: int) -> int:
        """``drainfsm notify`` to one agent, as a script on that node would. Its exit code."""
        command = [sys.executable, "-m", "drainfsm", "notify", "--job", self.place.job]
        command += ["--config", str(self.place.config), "--node-rank", str(node)]
        command += ["--in", str(in_s), "--cause", "spot_interruption"]
        return subprocess.run(
            command, check=False, env=outside_any_job(), stdout=subprocess.DEVNULL
        ).returncode

    def poll(self) -> list[int] | None:
        """The agents' exit codes once all have exited."""
        codes = [agent.poll() for agent in self._agents]
        if not self._agents or None in codes:
            return None
        if not self.exited_unix_ms:
            self.exited_unix_ms = time.time_ns() // 1_000_000
        return [code for code in codes if code is not None]

    def kill(self) -> None:
        """Only for a demo that is aborted: agents take their ranks with them."""
        for agent in self._agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGKILL)
                agent.wait()

    def log_tail(self) -> str:
        paths = sorted(self.place.root.glob(f"attempt-{self.number}-node-*.log"))
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2_000:]}" for path in paths
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
