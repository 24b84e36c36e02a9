"""Many seeds, on as many processors as there are."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from drainfsm_kit.simulator.entered import watching
from drainfsm_kit.simulator.simulation import simulate_seed
from drainfsm_kit.simulator.tally import Tally

CHUNK = 25
"""Seeds that one process runs before it reports."""

WATCHED_CHUNKS = 4
"""Of so many it is noted which functions they enter, which takes twice as long."""

Outcome = tuple[Tally, dict[int, str]]
"""Of some seeds: what happened, and by failing seed what was wrong."""


def run_watched(seeds: Sequence[int]) -> Outcome:
    """The same, and which functions of the product were entered. In a process that has simulated
    nothing yet, or what it keeps of before is not seen."""
    with watching() as entered:
        tally, failed = run_seeds(seeds)
    tally.entered |= entered
    return tally, failed


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
        for number, chunk in enumerate(chunks):
            yield run_watched(chunk) if number < WATCHED_CHUNKS else run_seeds(chunk)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        watched = [pool.submit(run_watched, chunk) for chunk in chunks[:WATCHED_CHUNKS]]
        others = [pool.submit(run_seeds, chunk) for chunk in chunks[WATCHED_CHUNKS:]]
        for done in (*watched, *others):
            yield done.result()
