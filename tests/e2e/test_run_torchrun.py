"""``drainfsm run -- torchrun``: the real launcher, real collectives, signals to all of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm_kit.running import RunningJob, free_port

UNHURRIED = Allowances(exit_margin_ms=30_000)
"""Python with torch in it takes seconds to end, on a busy machine many."""

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from drainfsm.runtime.rank.attach import attach_session
from drainfsm_kit.toy_rank import Saver, _parser

class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(4)

dist.init_process_group("gloo")
options = _parser().parse_args(sys.argv[1:])
session = attach_session()
saver = Saver(session, options)
batches = iter(DataLoader(Endless(), num_workers=1))
for step in range(saver.restore(), options.steps):
    batch = next(batches)
    dist.all_reduce(batch)
    time.sleep(options.step_s)
    if options.die and (session.rank, step) == (1, 20):
        os._exit(85)
    if session.step_done(step):
        break
session.close()
dist.destroy_process_group()
"""


def torchrun(*script: str, restarts: int = 0) -> tuple[str, ...]:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    port = str(free_port())
    return (*launcher, "--master-port", port, "--max-restarts", str(restarts), *script)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return str(path)


def test_a_signal_to_every_process_of_the_group_drains_and_kills_nobody(
    job: RunningJob, script: str
) -> None:
    """As a batch system signals: the agent, torchrun, the ranks, their DataLoader workers."""
    agent = job.start(torchrun(script), grace_s=120, allowances=UNHURRIED)
    job.wait_for(e.HealthyStepReached)
    everybody = job.processes()
    assert len(everybody) >= 6, "agent, torchrun, two ranks, two loader workers"
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for pid in everybody:
            os.kill(pid, number)
    assert agent.wait() == 75
    assert len(job.find(e.ManifestPublished)) == 1, agent.output()
    exited = job.find(e.Exited)[0]
    assert (exited.nodes[0].exit_code, exited.nodes[0].killed_ranks) == (0, ())


def test_a_notice_before_the_ranks_attach_ends_the_job_at_once(
    job: RunningJob, tmp_path: Path
) -> None:
    starting = tmp_path / "starting.py"
    starting.write_text("import time\nprint('up', flush=True)\ntime.sleep(1000)\n")
    agent = job.start(torchrun(str(starting)), grace_s=600)
    job.wait(lambda: agent.output().count("up") == 2 or None, what="two ranks that start")
    agent.signal()
    assert agent.wait() == 75
    assert job.find(e.SaveSkipped)[0].reason == "no process called drainfsm.attach()"


def test_the_exit_code_of_a_worker_survives_torchrun(job: RunningJob, script: str) -> None:
    agent = job.start(torchrun(script, "--die", "1@20@85"))
    assert agent.wait() == 85
    assert job.find(e.AttemptFinished)[0].exit_code == 85


def test_ranks_that_torchrun_starts_again_go_on_from_the_newest_commit_and_drain(
    job: RunningJob,
) -> None:
    """Toy ranks: gloo itself does not survive every restart."""
    toys = ("-m", "drainfsm_kit.toy_rank", "--trace", str(job.trace), "--die", "1@20@85")
    agent = job.start(
        torchrun(*toys, "--every", "8", restarts=1), grace_s=120, allowances=UNHURRIED
    )
    job.wait_for(e.CheckpointRestored)
    assert [(f.world_size, f.restart) for f in job.find(e.WorldFormed)] == [(2, 0), (2, 1)]
    assert len(job.find(e.CheckpointSized)) == 1, "the size is what it was"
    agent.signal()
    assert agent.wait() == 75
    trained = [int(line.split()[1]) for line in (job.trace / "rank1").read_text().splitlines()]
    again = next(at for at, step in enumerate(trained) if at and step <= trained[at - 1])
    before = {
        commit.step
        for commit in job.find(e.CheckpointCommitted)
        if commit.step <= trained[again - 1]
    }
    assert trained[again] - 1 in before, "they begin after a checkpoint of the ranks before"
    assert job.find(e.CheckpointRestored)[0].step == trained[again] - 1
    assert job.find(e.ManifestPublished)[0].step >= max(
        c.step for c in job.find(e.CheckpointCommitted)
    )
    assert job.find(e.Exited)[0].nodes[0].exit_code == 0


def test_two_nodes_of_which_torchrun_counts_a_restart_on_one_go_on_committing(
    pair: RunningJob,
) -> None:
    toys = ("-m", "drainfsm_kit.toy_rank", "--trace", str(pair.trace), "--die", "1@20@85")
    endpoint = f"127.0.0.1:{free_port()}"
    launcher = (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--max-restarts", "2"),
    )
    agents = [
        pair.start(
            (*launcher, *toys, "--every", "8", "--step-s", "0.1"),
            node_rank=node,
            grace_s=120,
            allowances=UNHURRIED,
        )
        for node in range(2)
    ]
    pair.wait(
        lambda: (
            any(c.generation_id.endswith("-p1") for c in pair.find(e.CheckpointCommitted)) or None
        ),
        what="a commit of the ranks that were started again",
    )
    assert [world.restart for world in pair.find(e.WorldFormed)] == [0, 1]
    agents[0].signal()
    assert [agent.wait() for agent in agents] == [75, 75]
    assert len(pair.find(e.ManifestPublished)) == 1
