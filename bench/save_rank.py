"""One rank of the saving benchmark: torch's ways, ours, and the disk's."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drainfsm.checkpoint import Checkpoint
from drainfsm.checkpoint.filling import memory_of
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import generation_id
from drainfsm.store import ObjectStore, open_store
from drainfsm_kit.ranks import RecordedPort, commit_saved

WIDTH = 1024
LAYER_BYTES = WIDTH * WIDTH * 4
PIECE_BYTES = 4 << 20


class Model:
    """All cases on one layout of the parameters."""

    def __init__(
        self,
        directory: Path,
        *,
        rank: int,
        world_size: int,
        count: int,
        width: int = WIDTH,
        sharded: bool,
        optimizer: bool = False,
    ) -> None:
        """``count`` parameters of so many rows and columns; ``optimizer``: an AdamW that was
        stepped once."""
        self.directory, self.rank, self.world_size = directory, rank, world_size
        self.directory.mkdir(exist_ok=True)
        torch.manual_seed(7)  # replicas are alike
        layers = [nn.Linear(width, width, bias=False) for _ in range(count)]
        self.model = nn.Sequential(*layers)
        self.total_bytes = count * width * width * 4 * (3 if optimizer else 1)
        if sharded:
            mesh = init_device_mesh("cpu", (world_size,))
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        self.optimizer = self._optimizer() if optimizer else None
        self.group: Any = dist.new_group(backend="gloo")
        self.number = 0
        self.copies: list[torch.Tensor] = []
        self.checkpoints: dict[str, tuple[Checkpoint, RecordedPort, Path]] = {}
        self.stores: dict[str, ObjectStore] = {}
        """The coordinator has one from the start of an attempt to its end."""

    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    def _state(self) -> dict[str, Any]:
        """As torch's own ways take it."""
        if self.optimizer is None:
            return {"model": get_model_state_dict(self.model)}
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def raw(self) -> float:
        """The disk: this rank's bytes, written and synced."""
        path = self._fresh()
        path.mkdir(exist_ok=True)
        dist.barrier()
        piece = bytes(PIECE_BYTES)
        began = time.perf_counter()
        with (path / f"{self.rank}").open("wb", buffering=0) as file:
            for left in range(self.total_bytes // self.world_size, 0, -PIECE_BYTES):
                file.write(piece[:left])
            os.fsync(file.fileno())
        dist.barrier()
        return self._cleaned(time.perf_counter() - began)

    def hashing(self) -> float:
        """What sha256 of this rank's bytes takes by itself, in one thread."""
        dist.barrier()
        began = time.perf_counter()
        for shard in self._own_shards():
            hashlib.sha256(memory_of(shard)).digest()
        return time.perf_counter() - began

    def warm_copy(self) -> float:
        """What staging cannot do without: this rank's bytes, into memory that is there already."""
        if not self.copies:
            self.copies = [torch.empty(p.shape) for p in self._own_shards()]
        dist.barrier()
        began = time.perf_counter()
        for copy, shard in zip(self.copies, self._own_shards(), strict=True):
            copy.copy_(shard)
        return time.perf_counter() - began

    def _own_shards(self) -> list[torch.Tensor]:
        return [p.to_local().detach() for p in self.model.parameters()]  # type: ignore[attr-defined]

    def torch_sync(self, *, threads: int = 1) -> float:
        """``dcp.save`` with its defaults (sync_files=True)."""
        path = self._fresh()
        dist.barrier()
        began = time.perf_counter()
        state = self._state()
        writer = FileSystemWriter(path, thread_count=threads)
        save(state, storage_writer=writer, process_group=self.group)
        return self._cleaned(time.perf_counter() - began)

    def torch_async(self) -> float:
        """``dcp.async_save`` with its defaults: blocked until training could go on."""
        path = self._fresh()
        dist.barrier()
        began = time.perf_counter()
        state = self._state()
        future: Any = async_save(state, checkpoint_id=path, process_group=self.group)
        blocked = time.perf_counter() - began
        future.result()
        return self._cleaned(blocked)

    def ours(self, name: str, **settings: Any) -> float:
        """Durable and committed, or (asynchronous) blocked until training could go on."""
        checkpoint, port, root = self._checkpoint(name, settings)
        self.number += 1
        dist.barrier()
        began = time.perf_counter()
        checkpoint.step_done(self.number)
        took = time.perf_counter() - began
        checkpoint.close()
        dist.barrier()
        if self.rank == 0 and not port.settings.asynchronous:
            took += self._commit(root, port)
        if port.of("failed"):
            raise AssertionError(port.of("failed"))
        return self._cleaned(took)

    def staged_share(self) -> float:
        """Bytes that a rank staged for the last asynchronous save, of all bytes."""
        _, port, _ = self.checkpoints["async"]
        return port.of("staged")[-1].size_bytes / self.total_bytes

    def _commit(self, root: Path, port: RecordedPort) -> float:
        """The coordinator's part: entries checked, manifest and commit record durable."""
        generation = generation_id(epoch=1, step=self.number, saver="p")
        store = self.stores.setdefault(port.store_url, open_store(port.store_url))
        began = time.perf_counter()
        commit_saved(
            store, root, generation=generation, step=self.number, world_size=self.world_size
        )
        return time.perf_counter() - began

    def _checkpoint(
        self, name: str, settings: dict[str, Any]
    ) -> tuple[Checkpoint, RecordedPort, Path]:
        if name not in self.checkpoints:
            root = self.directory / name
            root.mkdir(exist_ok=True)
            port = RecordedPort(
                root,
                store_url=str(root / "store"),
                rank=self.rank,
                world_size=self.world_size,
                settings=CheckpointSettings(every_steps=1, **settings),
            )
            self.checkpoints[name] = (
                Checkpoint(port, model=self.model, optimizer=self.optimizer),
                port,
                root,
            )
        return self.checkpoints[name]

    def _fresh(self) -> Path:
        self.number += 1
        return self.directory / f"save{self.number}"

    def _cleaned(self, result: float) -> float:
        """Nothing of one case is left to be written back while the next is measured."""
        dist.barrier()
        if self.rank == 0:
            saves = self.directory.glob("save*")
            for path in (*saves, *self.directory.glob("*/store/generations/*")):
                shutil.rmtree(path)
            os.sync()
        dist.barrier()
        return result


class _NoHash:
    def update(self, data: memoryview, /) -> None:
        pass

    def hexdigest(self) -> str:
        return "0"


def _without_checksums(measured: Callable[[], float]) -> float:
    """There is no such setting: a manifest without checksums proves nothing."""
    with mock.patch("drainfsm.checkpoint.files.new_hasher", return_value=_NoHash()):
        return measured()


def cases(
    rank: int, world_size: int, directory: Path, *, mib: int
) -> dict[str, Callable[[], float]]:
    sharded, replicated = (
        Model(
            directory / name,
            rank=rank,
            world_size=world_size,
            count=(mib << 20) // LAYER_BYTES,
            sharded=name == "sharded",
        )
        for name in ("sharded", "replicated")
    )
    return {
        "raw": sharded.raw,
        "dcp.save": sharded.torch_sync,
        "dcp.save, 2 threads": lambda: sharded.torch_sync(threads=2),
        "xxh3": lambda: sharded.ours("xxh3", asynchronous=False),
        "sha256": lambda: sharded.ours("sha256", asynchronous=False, checksum="sha256"),
        "sha256_tree": lambda: sharded.ours(
            "sha256_tree", asynchronous=False, checksum="sha256_tree"
        ),
        "hashing": sharded.hashing,
        "no checksum": lambda: _without_checksums(lambda: sharded.ours("none", asynchronous=False)),
        "warm copy": sharded.warm_copy,
        "async_save": sharded.torch_async,
        "async": lambda: sharded.ours("async"),
        "replicated async_save": replicated.torch_async,
        "replicated async": lambda: replicated.ours("async"),
        "replicated staged": replicated.staged_share,
    }
