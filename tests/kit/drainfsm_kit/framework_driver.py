"""What the driver script of each training framework shares: its options, its trace, its data.

A driver trains a tiny model with the real framework, and drainfsm's hook for it, as a user would:

    torchrun --nproc-per-node 2 tests/frameworks/drivers/NAME_driver.py OPTIONS

It must give the same trace whether it is drained or not (``tests/frameworks/test_contract.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset

WIDTH = 16
WAIT_S = 900.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every driver understands all of them. ``parse()`` is its command line, as JSON."""

    out: str
    """The directory of the trace."""

    sharding: str = "ddp"
    """``ddp``, or ``sharded``: FSDP2, ZeRO or what the framework has."""

    epochs: int = 2
    steps_per_epoch: int = 6
    """Optimizer steps."""

    accumulate: int = 2
    """Micro-batches of an optimizer step."""

    batch: int = 2
    """Samples of a micro-batch, on each rank."""

    validate_every: int = 3
    """Optimizer steps; 0: never."""

    pauses: tuple[str, ...] = ()
    """Points (``Trace.reach``) at which every rank waits until the test has done something."""

    hook: bool = True
    """False: the framework alone, without a line of drainfsm."""

    native_save_at: int = 0
    """Only without the hook: after so many optimizer steps, save by the framework's own means into
    ``native``, and train on."""

    native_resume: bool = False
    """Only without the hook: resume by the framework's own means from what was saved there."""

    native: str = ""
    misuse: str = ""
    """One of the driver's own ways to use the hook wrongly (``Framework.misuses``)."""

    @property
    def micro_batches(self) -> int:
        """Of an epoch, on each rank."""
        return self.steps_per_epoch * self.accumulate


def parse() -> Options:
    torch.set_num_threads(1)
    return msgspec.json.decode(sys.argv[1], type=Options)


class Trace:
    """What one rank has done, line by line, appended over the attempts of a job."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rank = int(os.environ["RANK"])
        self._directory = Path(options.out)
        self._directory.mkdir(parents=True, exist_ok=True)

    def batch(self, epoch: int, index: int, ids: Iterable[int], loss: Tensor) -> None:
        """A micro-batch was trained on: the ``index``-th of its epoch on this rank."""
        exact = float(loss.detach()).hex()
        self._write(what="batch", epoch=epoch, index=index, ids=[int(i) for i in ids], loss=exact)

    def validated(self, loss: Tensor) -> None:
        """A validation has ended."""
        self._write(what="validated", loss=float(loss.detach()).hex())

    def finished(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Training has ended by itself. Collective where the model is sharded."""
        self.finished_as(digest(model, optimizer))

    def finished_as(self, whole: str) -> None:
        """The same, with a digest of the driver's own."""
        self._write(what="finished", digest=whole)

    def note(self, **more: Any) -> None:
        """Anything that a driver's own test looks at; not compared."""
        self._write(what="note", **more)

    def reach(self, point: str) -> None:
        """Wait here if the test wants to do something at this point: ``batch:EPOCH:INDEX`` before a
        micro-batch is trained on, ``validation:N`` in the N-th validation of this process."""
        if point not in self._options.pauses:
            return
        (self._directory / f"paused-{point}-{self._rank}").touch()
        give_up = time.monotonic() + WAIT_S
        while not (self._directory / f"go-{point}").exists():
            if time.monotonic() > give_up:
                raise TimeoutError(f"nobody let rank {self._rank} go on from {point}")
            time.sleep(0.02)

    def _write(self, **line: Any) -> None:
        with (self._directory / f"rank{self._rank}").open("a") as trace:
            trace.write(json.dumps(line) + "\n")


class Samples(Dataset[dict[str, Tensor]]):
    """``{"id", "row", "target"}``, each a function of the index alone."""

    def __init__(self, count: int, *, seed: int = 0) -> None:
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self._seed * 100_003 + index)
        row = torch.randn(WIDTH, generator=generator)
        return {"id": torch.tensor(index), "row": row, "target": row.sum().tanh().reshape(1)}


def training_samples(options: Options, *, world_size: int = 2) -> Samples:
    return Samples(options.micro_batches * options.batch * world_size)


def validation_samples(options: Options, *, world_size: int = 2) -> Samples:
    return Samples(2 * options.batch * world_size, seed=1)


def network() -> nn.Sequential:
    """With dropout, so that a random state that is not restored is seen."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))


def seed_rank(rank: int) -> None:
    """Ranks draw different numbers from here on."""
    torch.manual_seed(100 + rank)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of every parameter and its optimizer state, whole. Collective where they are sharded."""
    for module in model.modules():
        if isinstance(module, FSDPModule):  # a validation leaves it whole: no parameter of its own
            module.reshard()
    whole = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        entries = optimizer.state.get(parameter, {})
        for value in (parameter, *(entries[key] for key in sorted(entries))):
            tensor = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
            whole.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return whole.hexdigest()


def cpu_ranks_that_accelerate_shards() -> None:
    """Accelerate, and with it the Trainer of Transformers, offers FSDP where there are accelerators
    and runs DDP on CPUs, whatever the plugin says. Here it takes these CPUs for accelerators."""
    state = import_module("accelerate.state")
    prepare = state.PartialState._prepare_backend

    def prepare_backend(self: Any, *args: Any, **more: Any) -> tuple[str, Any]:
        backend, _ = prepare(self, *args, **more)
        return backend, state.DistributedType.MULTI_XPU

    state.PartialState._prepare_backend = prepare_backend
    torch.distributed.init_process_group("gloo")
