"""One rank of the benchmark of fragmented states."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

from bench.save_rank import Model

SMALL_WIDTH = 16
TRAINED_WIDTH = 64


def _cpu_of(case: Callable[[], float]) -> float:
    """Of all threads. Ours closes its checkpoint, and torch's awaits its future, inside."""
    began = time.process_time()
    case()
    return time.process_time() - began


def _collected(case: Callable[[], float]) -> Callable[[], float]:
    """What the case before left behind is not collected during this one."""

    def run() -> float:
        gc.collect()
        return case()

    return run


def cases(
    rank: int, world_size: int, directory: Path, *, small: int, trained: int
) -> dict[str, Callable[[], float]]:
    models = {
        "small": Model(
            directory / "small",
            rank=rank,
            world_size=world_size,
            count=small,
            width=SMALL_WIDTH,
            sharded=False,
        ),
        "AdamW": Model(
            directory / "trained",
            rank=rank,
            world_size=world_size,
            count=trained,
            width=TRAINED_WIDTH,
            sharded=True,
            optimizer=True,
        ),
    }
    return {
        f"{kind} {name}": _collected(case)
        for kind, model in models.items()
        for name, case in _ways(model).items()
    }


def _ways(model: Model) -> dict[str, Callable[[], float]]:
    ways: dict[str, Callable[[], float]] = {
        "raw": model.raw,
        "dcp.save": model.torch_sync,
        "durable": lambda: model.ours("durable", asynchronous=False),
        "async_save": model.torch_async,
        "async": lambda: model.ours("async"),
    }
    cpu = {f"{name} cpu": (lambda way=ways[name]: _cpu_of(way)) for name in ("async_save", "async")}
    return ways | cpu
