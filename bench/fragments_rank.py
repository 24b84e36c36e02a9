"""One rank of the benchmark of fragmented states."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.save_rank import Model


def cases(
    rank: int, world_size: int, directory: Path, **options: Any
) -> dict[str, Callable[[], float]]:
    model = Model(directory / "job", rank=rank, world_size=world_size, **options)
    cpu_s: dict[str, float] = {}
    ways: dict[str, Callable[[], float]] = {
        "raw": model.raw,
        "dcp.save": model.torch_sync,
        "durable": lambda: model.ours("durable", asynchronous=False),
        "async_save": model.torch_async,
        "async": lambda: model.ours("async"),
    }

    def run(name: str) -> float:
        """What the case before left behind is not collected during this one. CPU time is that of
        all threads: ours closes its checkpoint, and torch's awaits its future, inside."""
        gc.collect()
        began = time.process_time()
        took = ways[name]()
        cpu_s[name] = time.process_time() - began
        return took

    found: dict[str, Callable[[], float]] = {}
    for name in ways:
        found[name] = partial(run, name)
        found[f"{name} cpu"] = partial(cpu_s.__getitem__, name)
    return found
