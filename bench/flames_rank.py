"""One rank of ``bench.flames``: small FSDP2 parameters with AdamW, saved while it is sampled."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from bench.flames import Sampler
from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.ranks import RecordedPort

WIDTH = 64


class Job:
    def __init__(self, directory: Path, *, rank: int, world_size: int, parameters: int) -> None:
        mesh = init_device_mesh("cpu", (world_size,))
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(parameters)]
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        model = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()
        self.store = directory / "store"
        port = RecordedPort(
            directory,
            store_url=str(self.store),
            rank=rank,
            world_size=world_size,
            settings=CheckpointSettings(every_steps=1),
        )
        self.checkpoint = Checkpoint(port, model=model, optimizer=optimizer)
        self.rank, self.step = rank, 0
        self.sampler = Sampler()
        self.blocked_s: list[float] = []

    def save(self) -> float:
        dist.barrier()
        began = time.perf_counter()
        with self.sampler:
            self.checkpoint.step_done(self.step)
        self.blocked_s.append(time.perf_counter() - began)
        self.step += 1
        self.checkpoint.close()
        dist.barrier()
        if self.rank == 0:
            shutil.rmtree(self.store / "generations")
        return self.blocked_s[-1]

    def warm_up(self) -> float:
        self.save()
        self.save()
        self.sampler.stacks.clear()
        self.blocked_s.clear()
        return 0.0

    def write(self, path: Path, title: str) -> float:
        if self.rank == 0:
            blocked_ms = statistics.median(self.blocked_s) * 1e3
            stacks = list(self.sampler.stacks.items())
            path.write_text(
                json.dumps({"title": title, "blocked_ms": blocked_ms, "stacks": stacks})
            )
        return 0.0


def cases(
    rank: int, world_size: int, directory: Path, *, parameters: int, samples: str, title: str
) -> dict[str, Callable[[], float]]:
    job = Job(directory, rank=rank, world_size=world_size, parameters=parameters)
    return {
        "warm up": job.warm_up,
        "save": job.save,
        "write": lambda: job.write(Path(samples), title),
    }
