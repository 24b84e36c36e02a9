"""Many seeds, on as many processors as there are."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from drainfsm_kit.simulator.simulation import simulate_seed
from drainfsm_kit.simulator.tally import Tally

CHUNK = 25
"""Seeds that one process runs before it reports."""

Outcome = tuple[Tally, dict[int, str]]
"""Of some seeds: what happened, and by failing seed what was wrong."""


def run_seeds(seeds: Sequence[int]) -> Outcome:
    """In this process."""
    tally, failed = Tally(), dict[int, str]()
    for seed in seeds:
        try:
            result = simulate_seed(seed)
        except Exception:  # a bug in the code under test, or here: it belongs to the seed
            failed[seed] = traceback.format_exc(limit=-3)
            continue
        tally.add(result.tally)
        if result.problems:
            failed[seed] = result.problems[0]
    return tally, failed


def run_many(first: int, count: int, *, jobs: int | None = None) -> Iterator[Outcome]:
    """In chunks, in the order of the seeds."""
    chunks = [
        range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)
    ]
    workers = min(len(chunks), jobs or os.cpu_count() or 1)
    if workers <= 1:
        yield from map(run_seeds, chunks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(run_seeds, chunks)
