"""How others agree on a stop: a collective after every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def cases(
    rank: int, world_size: int, directory: Path, *, times: int
) -> dict[str, Callable[[], float]]:
    def repeated(agree: Callable[[], object]) -> float:
        """ns a call, after a barrier."""
        dist.barrier()
        began = time.perf_counter_ns()
        for _ in range(times):
            agree()
        return (time.perf_counter_ns() - began) / times

    return {
        "all_reduce": lambda: repeated(_all_reduce),
        "lightning": lambda: repeated(_lightning),
        "megatron": lambda: repeated(_megatron),
    }


ONE = torch.zeros(1, dtype=torch.int64)


def _all_reduce() -> None:
    dist.all_reduce(ONE)


def _lightning() -> bool:
    """Lightning 2.6: ``strategy.broadcast(self.received_sigterm)`` of rank 0, at every batch."""
    flag = torch.tensor([0], dtype=torch.uint8)
    dist.broadcast(flag, src=0)
    return bool(flag.item())


def _megatron() -> bool:
    """Megatron-LM: ``DistributedSignalHandler.signals_received`` gathers every rank's flag."""
    flag = torch.tensor([0], dtype=torch.int32)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
