"""One rank of test_checkpoint.py and test_reshard.py: runs the scenarios given as JSON, in order.

python checkpoint_rank.py RANK WORLD_SIZE RENDEZVOUS_FILE SCENARIOS_JSON
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import (
    StatefulDistributedSampler,
)

from drainfsm.checkpoint import Checkpoint, exchange
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm_kit.ranks import RecordedPort

SAMPLES = 48
WIDTH = 64


class Samples(Dataset[tuple[int, Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return index, torch.randn(WIDTH, generator=generator)


class PlainSampler:
    """Infinite, shuffled anew every epoch; its position is what it gave out."""

    def __init__(self, rank: int, world_size: int, batch: int) -> None:
        self.given = 0
        self.rank, self.world_size, self.batch = rank, world_size, batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        data = Samples()
        while True:
            indices = []
            for _ in range(self.batch):
                position = self.given * self.world_size + self.rank
                epoch, offset = divmod(position, SAMPLES)
                order = random.Random(epoch).sample(range(SAMPLES), SAMPLES)
                indices.append(order[offset])
                self.given += 1
            rows = [data[index] for index in indices]
            yield torch.tensor(indices), torch.stack([row for _, row in rows])

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class ElasticSampler(PlainSampler):
    """Gives every sample once, also when other ranks go on."""

    def load_resharded(self, states: list[dict[str, int]], *, rank: int, world_size: int) -> None:
        self.given = sum(state["given"] for state in states) // world_size


class Job:
    """Model, optimizer, scheduler and data of one scenario, always made from the same seed."""

    def __init__(self, kind: str, loader: str, rank: int, world_size: int) -> None:
        torch.manual_seed(7)
        random.seed(7)
        layers = [nn.Linear(WIDTH, 128), nn.BatchNorm1d(128), nn.Dropout(0.5), nn.Linear(128, 8)]
        model: nn.Module = nn.Sequential(*layers)
        model.register_parameter("unused", nn.Parameter(torch.ones(3)))
        if kind == "ddp":
            model = DistributedDataParallel(model, find_unused_parameters=True)
        elif kind == "fsdp2":
            fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=40)
        self.loader: Any
        if loader == "plain":
            self.loader = PlainSampler(rank, world_size, 4)
        elif loader == "elastic":
            self.loader = ElasticSampler(rank, world_size, 4)
        else:
            sampler = StatefulDistributedSampler(
                Samples(), num_replicas=world_size, rank=rank, seed=3
            )
            workers = 1 if loader == "workers" else 0
            self.loader = StatefulDataLoader(
                Samples(), batch_size=4, sampler=sampler, num_workers=workers
            )
        torch.manual_seed(100 + rank)  # dropout differs from rank to rank

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.loader

    def digest(self) -> str:
        """Of parameters and optimizer state, whole. Collective."""
        whole = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            whole.update(name.removeprefix("module.").encode())
            entries = self.optimizer.state.get(parameter, {})
            for value in (parameter, *(entries[key] for key in sorted(entries))):
                tensor = value.full_tensor() if isinstance(value, DTensor) else value
                whole.update(tensor.detach().contiguous().numpy().tobytes())
        return whole.hexdigest()

    def train(self, first: int, steps: int, checkpoint: Checkpoint | None) -> list[Any]:
        """Loss, learning rate and sample ids of every step."""
        seen = []
        batches = self.batches()
        for step in range(first, steps):
            ids, rows = next(batches)
            loss = self.model(rows).square().mean() + 0.1 * random.random()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            rate = self.optimizer.param_groups[0]["lr"]
            seen.append([step, loss.item().hex(), rate, ids.tolist()])
            if checkpoint is not None and checkpoint.step_done(step):
                break
        return seen


def run(scenario: dict[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    directory = Path(scenario["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    target = scenario.get("target")
    port = RecordedPort(
        directory,
        store_url=scenario["store"],
        rank=rank,
        world_size=world_size,
        settings=CheckpointSettings(**scenario.get("settings", {})),
        restore_target=RestoreTarget(**target) if target else None,
        drain_at=scenario.get("drain_at"),
    )
    exchange.PEER_WAIT = timedelta(seconds=scenario.get("peer_wait_s", 60))
    job = Job(scenario["model"], scenario["loader"], rank, world_size)
    checkpoint = None
    first = 0
    if scenario.get("checkpointed", True):
        checkpoint = Checkpoint(
            port,
            model=job.model,
            optimizer=job.optimizer,
            scheduler=job.scheduler,
            loader=job.loader,
        )
        try:
            first = checkpoint.restore()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
    restored = job.digest() if scenario.get("digests") else ""
    if scenario.get("limit_rank") == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (scenario["limit_bytes"], -1))
    if scenario.get("hang_rank") == rank:
        late = Hanging(checkpoint, scenario["hang_at"], scenario["hang_s"])
        checkpoint = late  # type: ignore[assignment]
    if scenario.get("die_rank") == rank:
        checkpoint = Dying(checkpoint, scenario["die_at"])  # type: ignore[assignment]
    seen = job.train(first, scenario["steps"], checkpoint)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    if checkpoint is not None:
        checkpoint.close()
    left = job.digest() if scenario.get("digests") else ""
    return {"first": first, "seen": seen, "restored": restored, "left": left}


class Hanging:
    """Comes late to a save."""

    def __init__(self, checkpoint: Any, step: int, seconds: float) -> None:
        self._checkpoint, self._step, self._seconds = checkpoint, step, seconds

    def step_done(self, step: int) -> bool:
        if step == self._step:
            time.sleep(self._seconds)
        return bool(self._checkpoint.step_done(step))

    def close(self) -> None:
        self._checkpoint.close()


class Dying:
    """Kills its process where others begin to save."""

    def __init__(self, checkpoint: Any, step: int) -> None:
        self._checkpoint, self._step = checkpoint, step

    def step_done(self, step: int) -> bool:
        if step == self._step:
            os._exit(9)
        return bool(self._checkpoint.step_done(step))


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
    )
    for scenario in json.loads(sys.argv[4]):
        result = run(scenario, rank, world_size)
        out = Path(scenario["directory"]) / f"result{rank}.json"
        out.write_text(json.dumps(result))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
