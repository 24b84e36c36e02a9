"""Many small ranks in forks of one process.

    python -m bench.exchange_ranks WORLD_SIZE DIRECTORY TENSORS

Reads the names of cases, and writes one number for each: KiB that all ranks pickled for each other;
for ``… cpu`` the mean of their CPU times in ms when that case was last run.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.ranks import RecordedPort


class Rank:
    def __init__(self, rank: int, world_size: int, directory: Path, tensors: int) -> None:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world_size
        )
        self.rank, self.directory = rank, directory
        self.model = nn.ParameterDict(
            {f"r{rank}t{number}": torch.zeros(16) for number in range(tensors)}
        )
        self.sent_bytes = 0
        self._count_what_is_sent()
        self.port = RecordedPort(
            directory, store_url=str(directory / "store"), rank=rank, world_size=world_size,
            settings=CheckpointSettings(every_steps=1, asynchronous=False),
        )  # fmt: skip
        self.checkpoint = Checkpoint(self.port, model=self.model)
        self.number = 0

    def _count_what_is_sent(self) -> None:
        pickled: Any = distributed_c10d._object_to_tensor

        def counted(*given: Any, **named: Any) -> Any:
            made = pickled(*given, **named)
            self.sent_bytes += made[0].numel()
            return made

        distributed_c10d._object_to_tensor = counted

    def run(self, case: str) -> tuple[float, float]:
        """KiB, and ms of CPU time."""
        self.number += 1
        if case == "anew":  # another shape than before
            self.model["changing"] = torch.zeros(1 + self.number)
        dist.barrier()
        sent, began = self.sent_bytes, time.process_time()
        if case in ("anew", "again"):
            self.checkpoint.step_done(self.number)
            self.checkpoint.close()
            if failed := self.port.of("failed"):
                raise AssertionError(failed[0].reason)
        else:
            self._dcp(cached=case == "dcp cached")
        took = (time.process_time() - began) * 1e3
        dist.barrier()
        if self.rank == 0:
            for path in self.directory.glob("store/generations/*"):
                shutil.rmtree(path)
        return (self.sent_bytes - sent) / 1024, took

    def _dcp(self, *, cached: bool) -> None:
        path = self.directory / f"save{self.number}"
        save(
            {"model": self.model.state_dict()},
            storage_writer=FileSystemWriter(path, sync_files=True),
            planner=DefaultSavePlanner(enable_plan_caching=cached),
        )


def _serve(pipe: Any, make: Callable[[], Rank]) -> None:
    rank = make()
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            dist.destroy_process_group()
            return
        pipe.send(rank.run(case))


def main() -> None:
    world_size, directory, tensors = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    pipes: list[Any] = []
    children = []
    for rank in range(world_size):
        ours, theirs = Pipe()
        child = os.fork()
        if child == 0:
            for pipe in (*pipes, ours):
                pipe.close()
            code = 1
            try:
                _serve(theirs, lambda rank=rank: Rank(rank, world_size, directory, tensors))  # type: ignore[misc]
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        pipes.append(ours)
        children.append(child)
    cpu_ms: dict[str, float] = {}
    for line in sys.stdin:
        case = line.strip()
        if case.endswith(" cpu"):
            print(repr(cpu_ms[case.removesuffix(" cpu")]), flush=True)
            continue
        for pipe in pipes:
            pipe.send(case)
        answers = [pipe.recv() for pipe in pipes]
        cpu_ms[case] = sum(ms for _, ms in answers) / world_size
        print(repr(sum(kib for kib, _ in answers)), flush=True)
    for pipe in pipes:
        pipe.close()
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
