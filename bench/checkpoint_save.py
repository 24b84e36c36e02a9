"""What a save costs, beside torch's own and beside the disk (goals G12, G13, G14).

    python bench/checkpoint_save.py [--mib 200] [--rounds 9] [--ranks 2] [--dir DIRECTORY]

Every round runs all cases one after another; ratios are formed inside a round, and medians of the
ratios are shown with their spread. Absolute times on a shared machine say little.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import generation_id
from drainfsm.store import open_store
from drainfsm.testing.ranks import RecordedPort, commit_saved

WIDTH = 1024
LAYER_MIB = WIDTH * WIDTH * 4 / 2**20


class Bench:
    """The cases on one rank."""

    def __init__(self, root: Path, *, mib: int, rank: int, world_size: int, sharded: bool) -> None:
        self.root, self.rank, self.world_size = root, rank, world_size
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(round(mib / LAYER_MIB))]
        self.model = nn.Sequential(*layers)
        if sharded:
            for layer in layers:
                fully_shard(layer, mesh=init_device_mesh("cpu", (world_size,)))
        tensors = [layer.weight.detach() for layer in layers]
        if sharded:
            local: list[Any] = [tensor.to_local() for tensor in tensors]  # type: ignore[attr-defined]
        else:
            local = tensors[rank::world_size]
        self.share = [memoryview(tensor.numpy()).cast("B") for tensor in local]
        self.group = dist.new_group(backend="gloo")
        self.number = 0
        self.checkpoints: dict[str, tuple[Checkpoint, RecordedPort, Path]] = {}

    def fresh(self) -> Path:
        self.number += 1
        return self.root / f"save{self.number}"

    def raw(self) -> float:
        """The disk: this rank's share of the bytes, written and synced."""
        path = self.fresh()
        path.mkdir(exist_ok=True)
        dist.barrier()
        began = time.perf_counter()
        with (path / f"{self.rank}").open("wb", buffering=0) as file:
            for piece in self.share:
                file.write(piece)
            os.fsync(file.fileno())
        dist.barrier()
        return time.perf_counter() - began

    def torch_sync(self, threads: int) -> float:
        path = self.fresh()
        dist.barrier()
        began = time.perf_counter()
        state = {"model": get_model_state_dict(self.model)}
        writer = FileSystemWriter(path, thread_count=threads)
        save(state, storage_writer=writer, process_group=self.group)
        return time.perf_counter() - began

    def torch_async(self) -> float:
        """Blocked until training could go on."""
        path = self.fresh()
        dist.barrier()
        began = time.perf_counter()
        state = {"model": get_model_state_dict(self.model)}
        future: Any = async_save(state, checkpoint_id=path, process_group=self.group)
        blocked = time.perf_counter() - began
        future.result()
        return blocked

    def ours(self, name: str, **settings: Any) -> float:
        """Durable and committed, or (asynchronous) blocked until training could go on."""
        if name not in self.checkpoints:
            root = self.root / name
            root.mkdir(exist_ok=True)
            port = RecordedPort(
                root,
                store_url=str(root / "store"),
                rank=self.rank,
                world_size=self.world_size,
                settings=CheckpointSettings(every_steps=1, **settings),
            )
            self.checkpoints[name] = (Checkpoint(port, model=self.model), port, root)
        checkpoint, port, root = self.checkpoints[name]
        self.number += 1
        dist.barrier()
        began = time.perf_counter()
        checkpoint.step_done(self.number)
        took = time.perf_counter() - began
        checkpoint.close()
        dist.barrier()
        if self.rank == 0 and not port.settings.asynchronous:
            generation = generation_id(epoch=1, step=self.number, saver="p")
            store = open_store(port.store_url)
            began = time.perf_counter()
            commit_saved(
                store, root, generation=generation, step=self.number, world_size=self.world_size
            )
            took += time.perf_counter() - began
        if port.of("failed"):
            raise AssertionError(port.of("failed"))
        return took

    def cases(self) -> dict[str, Callable[[], float]]:
        return {
            "raw write + fsync": self.raw,
            "dcp.save": lambda: self.torch_sync(1),
            "dcp.save, 2 threads": lambda: self.torch_sync(2),
            "drainfsm, xxh3_128": lambda: self.ours("xxh3", asynchronous=False),
            "drainfsm, sha256": lambda: self.ours("sha", asynchronous=False, checksum="sha256"),
            "dcp.async_save, blocked": self.torch_async,
            "drainfsm async, blocked": lambda: self.ours("async"),
        }

    def clean(self) -> None:
        dist.barrier()
        if self.rank == 0:
            for path in (*self.root.glob("save*"), *self.root.glob("*/store/generations/*")):
                shutil.rmtree(path)
        dist.barrier()


def rank_main(rank: int, arguments: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root = Path(arguments.dir)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{root}/rendezvous",
        rank=rank,
        world_size=arguments.ranks,
    )
    for sharded in (True, False):
        place = root / f"sharded-{sharded}"
        place.mkdir(exist_ok=True)
        bench = Bench(
            place, mib=arguments.mib, rank=rank, world_size=arguments.ranks, sharded=sharded
        )
        rounds: list[dict[str, float]] = []
        for _ in range(arguments.rounds + 1):
            rounds.append({name: case() for name, case in bench.cases().items()})
            bench.clean()
        if rank == 0:
            show("sharded" if sharded else "replicated", rounds[1:])
    dist.destroy_process_group()


def show(title: str, rounds: list[dict[str, float]]) -> None:
    pairs = [
        ("raw write + fsync", "raw write + fsync"),
        ("dcp.save", "raw write + fsync"),
        ("dcp.save, 2 threads", "raw write + fsync"),
        ("drainfsm, xxh3_128", "raw write + fsync"),
        ("drainfsm, sha256", "raw write + fsync"),
        ("drainfsm, xxh3_128", "dcp.save"),
        ("drainfsm, sha256", "dcp.save"),
        ("drainfsm, xxh3_128", "dcp.save, 2 threads"),
        ("drainfsm async, blocked", "dcp.async_save, blocked"),
    ]
    print(f"\n{title}, {len(rounds)} rounds\n{'case':28}{'median s':>10}   ratio [spread] to")
    for name, base in pairs:
        times = statistics.median(round_[name] for round_ in rounds)
        ratios = sorted(round_[name] / round_[base] for round_ in rounds)
        middle = statistics.median(ratios)
        spread = f"[{ratios[0]:.2f}..{ratios[-1]:.2f}]"
        print(f"{name:28}{times:10.3f}   {middle:.2f} {spread} {base}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=200, help="size of the whole checkpoint")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dir", default="", help="where to write; default: a temporary directory")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank >= 0:
        rank_main(arguments.rank, arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir or None) as directory:
        command = [sys.executable, __file__, "--dir", directory]
        for name in ("mib", "rounds", "ranks"):
            command += [f"--{name}", json.dumps(getattr(arguments, name))]
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(arguments.ranks)
        ]
        codes = [rank.wait() for rank in ranks]
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
