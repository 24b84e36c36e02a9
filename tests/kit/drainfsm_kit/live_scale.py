"""One drain of a large job, live: a real agent of node 0 with its coordinator, journal and NATS
server, and the agents of all other nodes as real connections of one other process.

python -m drainfsm_kit.live_scale 10 100 300 1000

What the simulator says of the same is printed by ``python -m drainfsm_kit.simulator --scale``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.manifest import Entry
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.runtime.agent.coordinator_link import TcpLink, join
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.processes.descriptors import OWN_COUNT
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import encode_frame
from drainfsm.store import PosixStore, open_store
from drainfsm.store.generations import generation_prefix
from drainfsm_kit.agent_process import Agent
from drainfsm_kit.running import RunningJob, running_job

SIZES = (10, 100, 300, 1_000)
STEP_S = 0.2
WINDOW_S = 240
OVER_S = 900.0
ALLOWANCES = Allowances(quiesce_ms=40_000, commit_ms=40_000, exit_margin_ms=40_000)
"""Thousands of agents share two cores here."""

CLOCK_TICKS = 100
"""Of /proc/PID/stat, a second."""


Cost = dict[str, float]
"""Of one attempt whose drain was saved: seconds from the first connection; messages and bytes from
the notice to the end, both ways, without heartbeats; milliseconds from the notice on record; of
node 0 what coordinator, agent and shipper need together, at most."""


class Traffic:
    """What the nodes besides node 0 have sent and heard."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def count(self, message: msgspec.Struct) -> None:
        self.messages += 1
        self.bytes += len(encode_frame(message))


class LightNode:
    """One agent: the real link and the real books of its rank, which only pretends to train."""

    def __init__(self, config: RunConfig, traffic: Traffic, store: PosixStore) -> None:
        """``store``: one for all, or each would make the same directories durable again."""
        self._config = config
        self._store = store
        self._traffic = traffic
        self._began = 0.0
        self._ranks: LocalRanks
        self._start: LocalStart
        self._link: TcpLink
        self.over = asyncio.Event()
        self._door = self._to_rank
        """One object: by it the books tell a rank from the one before it."""

    async def join(self) -> None:
        """Until it is let in."""
        config = self._config
        self._link = await join(config, warn=lambda text: None)
        self._ranks = LocalRanks(
            node=config.node_rank, node_count=config.nnodes, report=self._report
        )
        self._start = LocalStart(self._link.welcome, self._ranks, self._report)

    async def run(self) -> None:
        """Attach the rank, and do what is ordered until the job has left."""
        self._began = time.monotonic()
        following = asyncio.create_task(self._link.run(self._on_order))
        rank, world_size = self._config.node_rank, self._config.nnodes
        attach = m.Attach(
            rank=rank, world_size=world_size, local_world_size=1, pid=0, incarnation="0"
        )
        start = await self._start.ask(attach)
        self._ranks.attach(attach, self._door, restart=start.restart)
        self._ranks.attached(rank)
        self._say(m.SizeDeclared(save_bytes=100))
        self._say(m.StepTime(step_ms=round(STEP_S * 1_000)))
        self._say(e.HealthyStepReached(step=0))
        over = asyncio.create_task(self.over.wait())
        await asyncio.wait({over, following}, return_when=asyncio.FIRST_COMPLETED)
        if not self.over.is_set():
            following.result()  # raises: the coordinator was lost
        following.cancel()
        self._link.close()

    def notify(self, notice: Notice) -> None:
        self._report(n.NodeNotice(ask=1, notice=notice))

    def _report(self, message: n.FromNode) -> None:
        self._traffic.count(message)
        self._link.send(message)

    def _on_order(self, order: n.ToNode) -> None:
        if isinstance(order, n.Heartbeat):
            return
        self._traffic.count(order)
        match order:
            case n.StartRanks():
                self._start.on_answer(order)
            case n.HoldNode(drain_id=drain_id):
                self._ranks.hold(drain_id)
            case n.ReleaseNode(stop_step=stop_step):
                self._ranks.release_to(stop_step)
            case n.SaveNode(order=save):
                self._ranks.save(m.Save(order=save))
            case n.LeaveNode(at_step=at_step):
                self._ranks.leave(at_step)
            case n.JobLeft():
                self.over.set()

    def _say(self, message: m.FromRank) -> None:
        self._ranks.on_message(self._config.node_rank, self._door, message)

    def _to_rank(self, order: m.ToRank) -> None:
        """What a rank would do at its next step boundary, at once."""
        match order:
            case m.Hold(number=number):
                step = int((time.monotonic() - self._began) / STEP_S)
                self._say(
                    m.Position(
                        number=number,
                        step=step,
                        step_ms=round(STEP_S * 1_000),
                        phase=m.TRAINING,
                        phase_left_ms=None,
                    )
                )
            case m.Release(stop_step=stop_step):
                self._say(m.Quiesced(step=stop_step))
            case m.Save(order=save):
                self._save(save.generation_id)
            case m.Leave():
                self._say(m.Detach())
                self._report(
                    n.NodeExited(exit=e.NodeExit(node=self._config.node_rank, exit_code=0))
                )

    def _save(self, generation_id: str) -> None:
        name, data = f"rank{self._config.node_rank}", b"." * 100
        (self._store.directory(generation_prefix(generation_id)) / name).write_bytes(data)
        checksum = f"sha256:{hashlib.sha256(data).hexdigest()}"
        entry = Entry(
            name=name, size_bytes=len(data), checksum=checksum, rank=self._config.node_rank
        )
        self._say(m.Staged(generation_id=generation_id, staged_bytes=len(data)))
        self._say(m.DurableFiles(generation_id=generation_id, entries=(entry,), durable_ms=1))


def measure(nodes: int, directory: Path, *, soft_limit: int = 1_024) -> Cost:
    """``soft_limit``: of open files, when node 0 is started; usual is 1,024.

    Raises:
        AssertionError: the drain was not saved.
    """
    _limit_descriptors(nodes + OWN_COUNT)
    server = EmbeddedServer.start(directory / "nats")
    try:
        with running_job(directory, nnodes=nodes, nats=server.url) as job:
            settings = {"heartbeat_s": 5.0, "silence_s": 60.0, "attach_s": OVER_S}
            variables = {"RANK": "0", "WORLD_SIZE": str(nodes), "LOCAL_WORLD_SIZE": "1"}
            command = job.toy("--step-s", str(STEP_S))
            _limit_descriptors(soft_limit)
            agent = job.start(
                command, allowances=ALLOWANCES, variables=variables, settings=settings
            )
            _limit_descriptors(nodes + OWN_COUNT)
            found = asyncio.run(_drain(job, agent, settings))
            assert agent.wait() == 75, agent.output()
            found |= _on_record(job) | asyncio.run(_stored(server.url, job.job))
            found["MiB of the other agents"] = _status("self", "VmRSS") / 1_024
            found["MiB of the server"] = _status(server.pid, "VmHWM") / 1_024
            return {"nodes": nodes, **found}
    finally:
        server.kill()


async def _drain(job: RunningJob, agent: Agent, settings: dict[str, Any]) -> Cost:
    traffic, store = Traffic(), open_store(job.store_url)
    assert isinstance(store, PosixStore)
    nodes = [
        LightNode(_config(job, rank, settings), traffic, store) for rank in range(1, job.nnodes)
    ]
    began = time.monotonic()
    async with asyncio.timeout(OVER_S):
        await asyncio.gather(*(node.join() for node in nodes))
        joined_s = time.monotonic() - began
        running = [asyncio.create_task(node.run()) for node in nodes]
        while not job.find(e.WorldFormed):
            await asyncio.sleep(0.2)
        formed_s = time.monotonic() - began
        await asyncio.sleep(2 * STEP_S)
        before, bytes_before = traffic.messages, traffic.bytes
        descriptors = len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir()))
        nodes[0].notify(_notice())
        ended, price = asyncio.gather(*running), Cost()
        while not ended.done():
            price |= _price(agent.process.pid)
            await asyncio.wait({ended}, timeout=0.2)
        await ended
    others = job.nnodes - 1
    return {
        "s until all have joined": joined_s,
        "s until the world is on record": formed_s,
        "messages a node": (traffic.messages - before) / others,
        "bytes a node": (traffic.bytes - bytes_before) / others,
        "descriptors of node 0": descriptors,
        **price,
    }


def _config(job: RunningJob, node_rank: int, settings: dict[str, Any]) -> RunConfig:
    return RunConfig(
        job=job.job,
        store=job.store_url,
        state_dir=job.state_dir,
        command=("true",),
        nnodes=job.nnodes,
        node_rank=node_rank,
        coordinator=job.coordinator,
        token=job.token,
        **settings,
    )


def _notice() -> Notice:
    now_unix_ms = Clock().now_unix_ms()
    return Notice(
        source="notify",
        native_id="first",
        cause=Cause("test"),
        notice_class=NoticeClass.HARD,
        deadline_unix_ms=now_unix_ms + WINDOW_S * 1_000,
        received_unix_ms=now_unix_ms,
    )


def _on_record(job: RunningJob) -> Cost:
    records = job.records()

    def at(kind: type[e.Fact]) -> int:
        for record in records:
            if any(isinstance(one, kind) for one in record.events):
                return record.at_unix_ms
        raise AssertionError(f"no {kind.__name__}: {job.events()}")

    notice_ms = at(e.NoticeReceived)
    return {
        "records": len(records),
        "ms until agreed": at(e.StopStepAgreed) - notice_ms,
        "ms until quiesced": at(e.RanksQuiesced) - notice_ms,
        "ms until saved": at(e.ManifestPublished) - notice_ms,
        "ms until left": at(e.Exited) - notice_ms,
    }


async def _stored(url: str, job_id: str) -> Cost:
    connection = await connect(url, timeout_s=60)
    try:
        return {"records in the stream": len(await connection.read_job(job_id))}
    finally:
        await connection.close()


def _price(pid: int) -> Cost:
    """Empty: the process is about to end."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        return {"CPU s of node 0": cpu_s, "MiB of node 0": _status(pid, "VmHWM") / 1_024}
    return {}


def _status(process: int | str, name: str) -> int:
    """KiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1])


def _limit_descriptors(soft: int) -> None:
    """Raises: ValueError: more than this process may have."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


def table(costs: Sequence[Cost]) -> str:
    rows = [[name, *(_cell(cost[name]) for cost in costs)] for name in costs[0]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _cell(value: float) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="drainfsm_kit.live_scale")
    parser.add_argument("nodes", type=int, nargs="*", help=f"by default {SIZES}")
    costs = []
    for nodes in parser.parse_args(argv).nodes or SIZES:
        with tempfile.TemporaryDirectory() as directory:
            costs.append(measure(nodes, Path(directory)))
        sys.stderr.write(f"{table(costs[-1:])}\n")
    sys.stdout.write(f"{table(costs)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
