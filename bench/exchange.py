"""What ranks exchange to agree about a save, from 2 to 64 of them (G19)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Case, Size, Topic, at_most

TENSORS = 100
WORLD_SIZES = (2, 16, 64)
QUICK_WORLD_SIZES = (2, 4)
WAYS = {
    "dcp.save": "dcp",
    "dcp.save, cached plan": "dcp cached",
    "drainfsm, a new plan": "anew",
    "drainfsm, the plan of before": "again",
}


class Fleet:
    """Ranks that are forks of one process, which has imported torch for all of them."""

    def __init__(self, directory: Path, world_size: int) -> None:
        directory.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.exchange_ranks", str(world_size), str(directory),
             str(TENSORS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, case: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    cases: dict[str, Case] = {}
    fleets = []
    with tempfile.TemporaryDirectory() as directory:
        for world_size in QUICK_WORLD_SIZES if size.quick else WORLD_SIZES:
            fleet = Fleet(Path(directory) / str(world_size), world_size)
            fleets.append(fleet)
            for name, way in WAYS.items():
                cases[f"{world_size} ranks: {name}"] = partial(fleet.ask, way)
                cases[f"{world_size} ranks: CPU ms of a rank: {name}"] = partial(
                    fleet.ask, f"{way} cpu"
                )
        yield cases
        for fleet in fleets:
            fleet.close()


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
