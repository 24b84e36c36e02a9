"""The same training twice: under drainfsm, and as a careful plain script would be written.

    python -m bench.training drainfsm|plain|bare DIRECTORY STEPS EVERY

Two gloo ranks average their gradients. The plain script asks all ranks after every step (a SIGTERM
may reach them in different steps), saves with ``dcp.save`` and then writes the name of the save
into ``latest``. Rank 0 writes down every completed step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

WIDTH, LAYERS, BATCH = 512, 12, 16


class Job:
    """Model, optimizer and one step; 36 MiB of state with Adam's."""

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['BENCH_RENDEZVOUS']}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        self.rank = dist.get_rank()
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.batches = torch.Generator().manual_seed(self.rank)
        self._steps = (directory / "steps").open("a") if self.rank == 0 else None

    def train_one(self, step: int) -> None:
        batch = torch.randn(BATCH, WIDTH, generator=self.batches)
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(summed.view_as(gradient) / dist.get_world_size())
        self.optimizer.step()
        if self._steps is not None:
            self._steps.write(f"{step} {time.time_ns()}\n")
            self._steps.flush()


def drainfsm(directory: Path, steps: int, every: int) -> None:
    """``every`` is the agent's option."""
    from drainfsm import attach

    job = Job(directory)
    session = attach()
    checkpoint = session.checkpoint(model=job.model, optimizer=job.optimizer)
    for step in range(checkpoint.restore(), steps):
        job.train_one(step)
        if checkpoint.step_done(step):
            break
    session.close()
    dist.destroy_process_group()


def bare(directory: Path, steps: int, every: int) -> None:
    """Asks nobody, saves nothing."""
    job = Job(directory)
    for step in range(steps):
        job.train_one(step)


def plain(directory: Path, steps: int, every: int) -> None:
    asked = torch.zeros(1, dtype=torch.int64)
    signal.signal(signal.SIGTERM, lambda *_: asked.fill_(1))
    job = Job(directory)
    for step in range(_load(job, directory), steps):
        job.train_one(step)
        stop = asked.clone()
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item() or (every and (step + 1) % every == 0):
            _save(job, directory, step)
        if stop.item():
            break
    dist.destroy_process_group()


def _save(job: Job, directory: Path, step: int) -> None:
    model, optimizer = get_state_dict(job.model, job.optimizer)
    save({"model": model, "optimizer": optimizer}, checkpoint_id=directory / f"step-{step}")
    if job.rank == 0:
        (directory / "latest").write_text(f"step-{step}")


def _load(job: Job, directory: Path) -> int:
    if not (directory / "latest").exists():
        return 0
    name = (directory / "latest").read_text()
    model, optimizer = get_state_dict(job.model, job.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    load(state, checkpoint_id=directory / name)
    set_state_dict(
        job.model,
        job.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    return int(name.removeprefix("step-")) + 1


KINDS: dict[str, Callable[[Path, int, int], None]] = {
    "bare": bare,
    "plain": plain,
    "drainfsm": drainfsm,
}

if __name__ == "__main__":
    kind, where, step_count, save_every = sys.argv[1:]
    KINDS[kind](Path(where), int(step_count), int(save_every))
