"""What ranks exchange to agree about a save, from 2 to 64 of them (G19)."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_most
from bench.ranks import Asked

TENSORS = 100
WORLD_SIZES = (2, 16, 64)
QUICK_WORLD_SIZES = (2, 4)
WAYS = {
    "dcp.save": "dcp",
    "dcp.save, cached plan": "dcp cached",
    "drainfsm, a new plan": "anew",
    "drainfsm, the plan of before": "again",
}


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    """A fleet is one process, which has imported torch for all ranks; they are forks of it."""
    cases: dict[str, Case] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as open_:
        for world_size in QUICK_WORLD_SIZES if size.quick else WORLD_SIZES:
            root = Path(directory) / str(world_size)
            root.mkdir()
            start = [sys.executable, "-m", "bench.exchange_ranks"]
            command = [*start, str(world_size), str(root), str(TENSORS)]
            fleet = open_.enter_context(Asked([command]))
            for name, way in WAYS.items():
                cases[f"{world_size} ranks: {name}"] = partial(fleet.ask, way)
                cases[f"{world_size} ranks: CPU ms of a rank: {name}"] = partial(
                    fleet.ask, f"{way} cpu"
                )
        yield cases


TOPIC = Topic(
    name="exchange",
    title="What ranks send each other for one save",
    unit="KiB; CPU: ms",
    note=f"{TENSORS} tensors of 64 bytes on every rank, no two alike, all ranks on this machine. "
    "Everything that a rank pickles for another one during a save, summed over the ranks; CPU time "
    "of a whole save, the mean of the ranks. Sizes are the same in every round.",
    open=opened,
    quick=False,
    rounds=3,
    ratios=tuple(
        ratio
        for world_size in WORLD_SIZES
        for ratio in (
            at_most("G19", f"{world_size} ranks: sent, beside dcp.save",
                    f"{world_size} ranks: drainfsm, the plan of before",
                    f"{world_size} ranks: dcp.save", goal=0.1, gate=0.15),
            at_most("G19", f"{world_size} ranks: sent, beside dcp.save with a cached plan",
                    f"{world_size} ranks: drainfsm, the plan of before",
                    f"{world_size} ranks: dcp.save, cached plan"),
            at_most("G19", f"{world_size} ranks: CPU time, beside dcp.save with a cached plan",
                    f"{world_size} ranks: CPU ms of a rank: drainfsm, the plan of before",
                    f"{world_size} ranks: CPU ms of a rank: dcp.save, cached plan"),
        )
    ),
)  # fmt: skip
