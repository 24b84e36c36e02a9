"""Runs ``drainfsm run`` for real, and waits for what its journal says. For end-to-end tests."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from drainfsm.core.budget import Allowances
from drainfsm.core.events import Event, UnknownFact
from drainfsm.core.fold import Fold
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.records import Record
from drainfsm.core.state import State
from drainfsm.log.journal import journals, read_journal
from drainfsm.runtime.agent.notify import give_notice
from drainfsm.runtime.clock import Clock
from drainfsm_kit.agent_process import CLOCK_OFF_MS as CLOCK_OFF_MS
from drainfsm_kit.agent_process import WAIT_S as WAIT_S
from drainfsm_kit.agent_process import Agent as Agent
from drainfsm_kit.agent_process import free_port as free_port
from drainfsm_kit.marks import MARK, pids_with
from drainfsm_kit.toy_rank import TOY_PORT

F = TypeVar("F", bound=Event)
R = TypeVar("R")

POLL_S = 0.02

DRAINFSM = (sys.executable, "-m", "drainfsm")
TOY = (sys.executable, "-m", "drainfsm_kit.toy_rank")
TOY_LAUNCHER = (sys.executable, "-m", "drainfsm_kit.toy_launcher")

ROOMY = Allowances(
    quiesce_ms=20_000, commit_ms=10_000, exit_margin_ms=10_000, clock_skew_ms=0, barrier_ms=100
)
"""Enough for a busy machine, where the time until something is given up is not what is tested."""

QUICK = Allowances(
    quiesce_ms=1_500, commit_ms=1_000, exit_margin_ms=2_000, clock_skew_ms=0, barrier_ms=100
)
"""Small reserves, so that a short grace is enough for a drain."""


class RunningJob:
    """One job in one state directory; its agents are started one by one, attempt after attempt."""

    def __init__(
        self,
        directory: Path,
        *,
        nnodes: int = 1,
        nats: str = "nats://127.0.0.1:9",
        store: str = "",
        wait_s: float = WAIT_S,
    ) -> None:
        """``nats``: by default an address where nobody answers; empty: the embedded server.
        ``store``: URL of another store than a directory of the job's own. ``wait_s``: how long
        ``wait`` waits."""
        self.directory = directory
        self.job = f"job-{secrets.token_hex(4)}"
        self.store = directory / "store"
        self.store_url = store or str(self.store)
        self.state_dir = directory / "state"
        self.trace = directory / "trace"
        self.trace.mkdir(parents=True, exist_ok=True)
        self.nnodes = nnodes
        self.nats = nats
        self.wait_s = wait_s
        self.token = secrets.token_hex(8)
        self.coordinator = f"127.0.0.1:{free_port()}" if nnodes > 1 else ""
        self.allowances, self.grace_s = QUICK, 20.0
        """What ``start`` takes if it is given none."""

        self.agents: list[Agent] = []

    def start(
        self,
        command: Sequence[str],
        *,
        node_rank: int = 0,
        grace_s: float | None = None,
        allowances: Allowances | None = None,
        checkpoint: CheckpointSettings | None = None,
        variables: dict[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        file_bytes_max: int = 0,
        stderr: int | None = None,
    ) -> Agent:
        """The agent of one node, as a process. ``settings``: more of its ``RunConfig``;
        ``file_bytes_max``: beyond it a write fails, as on a full disk."""
        config: dict[str, object] = {
            "job": self.job,
            "store": self.store_url,
            "state_dir": str(self.state_dir),
            "command": list(command),
            "nats": self.nats,
            "nnodes": self.nnodes,
            "node_rank": node_rank,
            "coordinator": self.coordinator,
            "token": self.token,
            "grace_s": self.grace_s if grace_s is None else grace_s,
            "allowances": allowances or self.allowances,
            "checkpoint": checkpoint or CheckpointSettings(),
            **(settings or {}),
        }
        marks = {"NNODES": str(self.nnodes), "NODE_RANK": str(node_rank), MARK: self.job}
        agent = Agent(
            self.directory, config, {**marks, **(variables or {})}, file_bytes_max, stderr
        )
        self.agents.append(agent)
        return agent

    def toy(self, *options: str, ranks: int = 1) -> tuple[str, ...]:
        """The command of one node with so many toy ranks; see ``drainfsm_kit.toy_rank``."""
        command = (*TOY, "--trace", str(self.trace), *options)
        return command if ranks == 1 else (*TOY_LAUNCHER, str(ranks), *command)

    def start_toys(
        self, *options: str, ranks: int = 2, grace_s: float | None = None, **settings: object
    ) -> None:
        """All nodes, with ranks that wait for each other after every step."""
        variables = {TOY_PORT: str(free_port())}
        command = self.toy(*options, ranks=ranks)
        for node in range(self.nnodes):
            self.start(
                command, node_rank=node, grace_s=grace_s, variables=variables, settings=settings
            )

    def notify(
        self,
        *,
        in_s: float,
        native_id: str = "first",
        soft: bool = False,
        node_rank: int | None = None,
    ) -> str:
        """A notice by way of the agent's socket, as ``drainfsm notify`` gives it."""
        now_unix_ms = Clock().now_unix_ms()
        notice = Notice(
            source="notify",
            native_id=native_id,
            cause=Cause("test"),
            notice_class=NoticeClass.SOFT if soft else NoticeClass.HARD,
            deadline_unix_ms=now_unix_ms + round(in_s * 1_000),
            received_unix_ms=now_unix_ms,
        )
        return give_notice(self.state_dir, job=self.job, notice=notice, node_rank=node_rank)

    def records(self, epoch: int = 1) -> list[Record]:
        path = journals(self.state_dir, self.job).get(epoch)
        return [] if path is None else list(read_journal(path))

    def events(self, epoch: int = 1) -> list[Event | UnknownFact]:
        return [event for record in self.records(epoch) for event in record.events]

    def state(self, epoch: int = 1) -> State:
        fold = Fold(job_id=self.job, epoch=epoch)
        fold.read_all(self.records(epoch))
        return fold.state

    def find(self, kind: type[F], epoch: int = 1) -> list[F]:
        return [event for event in self.events(epoch) if isinstance(event, kind)]

    def wait_for(self, kind: type[F], *, epoch: int = 1, count: int = 1) -> F:
        """The ``count``-th event of that kind, once it is in the journal."""

        def found() -> F | None:
            events = self.find(kind, epoch)
            return events[count - 1] if len(events) >= count else None

        return self.wait(found, what=f"{kind.__name__} in epoch {epoch}")

    def wait(self, found: Callable[[], R | None], *, what: str) -> R:
        """What ``found`` returns, once it returns something. Fails when every agent has ended."""
        return self._wait(found, what, agents_run=True)

    def wait_anyway(self, found: Callable[[], R | None], *, what: str) -> R:
        """The same, whether or not an agent runs."""
        return self._wait(found, what, agents_run=False)

    def _wait(self, found: Callable[[], R | None], what: str, *, agents_run: bool) -> R:
        give_up = time.monotonic() + self.wait_s
        while time.monotonic() < give_up:
            over = all(agent.process.poll() is not None for agent in self.agents)
            if (result := found()) is not None:
                return result
            if over and agents_run:
                break
            time.sleep(POLL_S)
        told = "\n".join(agent.output() for agent in self.agents)
        raise AssertionError(f"no {what}; the agents said:\n{told}\n{self._kinds()}")

    def _kinds(self) -> str:
        return "\n".join(
            f"{epoch}: {[type(event).__name__ for event in self.events(epoch)]}"
            for epoch in journals(self.state_dir, self.job)
        )

    def steps(self, rank: int, epoch: int = 1) -> list[int]:
        """Steps that the rank has done in that attempt, of a toy rank with ``--trace``."""
        path = self.trace / f"rank{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(step) for e, step in map(str.split, lines) if int(e) == epoch]

    def processes(self) -> list[int]:
        """Every process of the job that lives, agents included."""
        return pids_with(f"\0{MARK}={self.job}\0")

    def rank_pid(self, rank: int) -> int:
        found = set(self.processes()) & set(pids_with(f"\0RANK={rank}\0"))
        if len(found) != 1:
            raise AssertionError(f"rank {rank} is run by processes {found}")
        return found.pop()

    def wait_until_gone(self) -> None:
        """No process of the job is left."""
        self.wait_anyway(lambda: None if self.processes() else True, what="end of all processes")

    def close(self) -> None:
        for agent in self.agents:
            agent.close()


@contextmanager
def running_job(
    directory: Path,
    *,
    nnodes: int = 1,
    nats: str = "nats://127.0.0.1:9",
    store: str = "",
    wait_s: float = WAIT_S,
) -> Iterator[RunningJob]:
    job = RunningJob(directory, nnodes=nnodes, nats=nats, store=store, wait_s=wait_s)
    try:
        yield job
    finally:
        job.close()
