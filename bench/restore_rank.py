"""One rank of the restoring benchmark: torch's ways, ours, and the bare bytes."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from bench.processes import peak_begins_mib, resident_mib
from drainfsm.checkpoint import Checkpoint
from drainfsm.checkpoint.filling import memory_of
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.core.words import Verification
from drainfsm.store import open_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

WIDTH = 1024
LAYER_BYTES = WIDTH * WIDTH * 4
STATE_COPIES = 3
"""A parameter and AdamW's two moments."""

RAW_THREADS = 4
RAW_PIECE_BYTES = 4 << 20
STEP = 7


class Job:
    """A model with AdamW that was stepped once, saved in every way; and all ways back."""

    def __init__(
        self, directory: Path, *, rank: int, world_size: int, mib: int, sharded: bool
    ) -> None:
        self.directory, self.rank, self.world_size = directory, rank, world_size
        self.sharded = sharded
        directory.mkdir(exist_ok=True)
        self.layers = (mib << 20) // LAYER_BYTES // STATE_COPIES
        self.model = self._model()
        self.group: Any = dist.new_group(backend="gloo")
        self.optimizer = self._optimizer()
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        self.optimizer.zero_grad()  # with gradients left, get_state_dict leaves the moments out
        self.share_bytes = sum(tensor.nbytes for tensor in self._own())
        self._save()
        self.peak_share = 0.0

    def _model(self) -> nn.Module:
        torch.manual_seed(7)  # replicas are alike
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(self.layers)]
        if self.sharded:
            mesh = init_device_mesh("cpu", (self.world_size,))
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        return nn.Sequential(*layers)

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)

    def _own(self) -> Iterator[Tensor]:
        """What this rank holds: parameters, and the optimizer's moments."""
        yield from map(_local, self.model.parameters())
        for entries in self.optimizer.state.values():
            yield from (_local(value) for value in entries.values())

    def _save(self) -> None:
        state = get_state_dict(self.model, self.optimizer)
        save(dict(zip("mo", state, strict=True)), checkpoint_id=self.directory / "dcp",
             process_group=self.group)  # fmt: skip
        own = [tensor.clone() for tensor in self._own()]
        torch.save(own, self.directory / f"own{self.rank}.pt")
        with (self.directory / f"raw{self.rank}").open("wb") as file:
            for tensor in own:
                file.write(memory_of(tensor))
        root = self.directory / "ours"
        root.mkdir(exist_ok=True)
        port = RecordedPort(
            root,
            store_url=str(root / "store"),
            rank=self.rank,
            world_size=self.world_size,
            drain_at=STEP,
        )
        Checkpoint(port, model=self.model, optimizer=self.optimizer).step_done(STEP)
        dist.barrier()
        targets: list[Any] = [None]
        if self.rank == 0:
            generation = generation_id(epoch=1, step=STEP, saver="d1")
            targets = [
                commit_saved(
                    open_store(port.store_url), root, generation=generation, step=STEP,
                    world_size=self.world_size,
                )
            ]  # fmt: skip
        dist.broadcast_object_list(targets)
        self.target: RestoreTarget = targets[0]
        os.sync()
        dist.barrier()

    def raw(self) -> float:
        """This rank's bytes, by as many threads as read for us, into the memory of the parameters
        and into memory that is new, as an optimizer's state is."""
        self._anew()
        places = [_local(parameter).detach() for parameter in self.model.parameters()]
        began = time.perf_counter()
        path = self.directory / f"raw{self.rank}"
        at, reads = 0, []
        for place in places + [torch.empty_like(p) for p in places for _ in range(2)]:
            view = memory_of(place)
            for start in range(0, len(view), RAW_PIECE_BYTES):
                reads.append((view[start : start + RAW_PIECE_BYTES], at + start))
            at += len(view)
        fd = os.open(path, os.O_RDONLY)
        with ThreadPoolExecutor(RAW_THREADS) as pool:
            for read in [pool.submit(os.preadv, fd, [view], at) for view, at in reads]:
                read.result()
        os.close(fd)
        return self._over(began)

    def dcp(self) -> float:
        self._anew()
        began = time.perf_counter()
        model, optimizer = get_state_dict(self.model, self.optimizer)
        load(
            {"m": model, "o": optimizer},
            checkpoint_id=self.directory / "dcp",
            process_group=self.group,
        )
        set_state_dict(
            self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )
        took = self._over(began)
        assert len(self.optimizer.state) == self.layers
        return took

    def mapped(self) -> float:
        """A file of this rank's own, mapped, and copied to where it belongs."""
        self._anew()
        began = time.perf_counter()
        stored = iter(torch.load(self.directory / f"own{self.rank}.pt", mmap=True))
        for parameter in self.model.parameters():
            _local(parameter).detach().copy_(next(stored))
        self.state = [tensor.clone() for tensor in stored]
        took = self._over(began)
        self.state = []
        return took

    def ours(self, verify: str) -> float:
        self._anew()
        root = self.directory / "ours"
        port = RecordedPort(
            root,
            store_url=str(root / "store"),
            rank=self.rank,
            world_size=self.world_size,
            settings=CheckpointSettings(verify=Verification(verify)),
            restore_target=self.target,
        )
        checkpoint = Checkpoint(port, model=self.model, optimizer=self.optimizer)
        dist.barrier()
        before = peak_begins_mib()
        began = time.perf_counter()
        assert checkpoint.restore() == STEP + 1
        took = self._over(began)
        parameters = sum(_local(p).nbytes for p in self.model.parameters())
        taken = (resident_mib(os.getpid(), "VmHWM") - before) * (1 << 20)
        self.peak_share = (taken + parameters) / self.share_bytes
        return took

    def cold(self, case: Callable[[], float]) -> float:
        """None of the files is in the page cache."""
        for path in self.directory.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
        return case()

    def _anew(self) -> None:
        """As after a start: parameters that exist, an optimizer without state, and no memory left
        over from the case before."""
        self.optimizer = self._optimizer()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        dist.barrier()

    def _over(self, began: float) -> float:
        dist.barrier()
        return time.perf_counter() - began


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def cases(
    rank: int, world_size: int, directory: Path, *, mib: int, sharded: bool
) -> dict[str, Callable[[], float]]:
    job = Job(directory / "job", rank=rank, world_size=world_size, mib=mib, sharded=sharded)
    ways: dict[str, Callable[[], float]] = {
        "raw": job.raw,
        "dcp.load": job.dcp,
        "mapped": job.mapped,
        "sizes": lambda: job.ours("sizes"),
        "checksums": lambda: job.ours("checksums"),
    }
    cold = {f"cold {name}": (lambda way=way: job.cold(way)) for name, way in ways.items()}
    return ways | cold | {"peak": lambda: job.peak_share}
