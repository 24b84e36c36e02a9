"""What is left when everything is killed at a random moment of a drain."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.attempts import Job
from bench.harness import Case, Size, Topic

EVERY = 10
STEPS = 15
WINDOW_S = 0.4
"""After the notice: about twice what such a save takes on an idle machine."""


class Killed:
    def __init__(self, kind: str, chance: random.Random) -> None:
        self.kind = kind
        self._chance = chance
        self.found: dict[str, float] = {}

    def run(self) -> float:
        with tempfile.TemporaryDirectory() as directory:
            job = Job(self.kind, Path(directory), every=EVERY)
            try:
                self._run(job)
            finally:
                job.kill()
        return self.found["steps lost"]

    def value(self, name: str) -> float:
        return self.found[name]

    def _run(self, job: Job) -> None:
        job.start()
        job.wait_for_steps(STEPS)
        job.tell()
        time.sleep(self._chance.uniform(0, WINDOW_S))
        job.kill()
        last, leftovers = job.steps_done()[-1][0], job.leftovers()
        job.start()
        try:
            resumed, restarted = job.wait_for_steps(1)[0][0], 1.0
        except AssertionError:
            resumed, restarted = 0, 0.0
        self.found = {
            "steps lost": float(last + 1 - resumed),
            "unfinished saves left": float(leftovers),
            "restarted by itself (1: yes)": restarted,
        }


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    cases: dict[str, Case] = {}
    for kind in ("drainfsm", "plain"):
        killed = Killed(kind, random.Random(11))
        cases[f"{kind}: steps lost"] = killed.run
        for name in ("unfinished saves left", "restarted by itself (1: yes)"):
            cases[f"{kind}: {name}"] = partial(killed.value, name)
    yield cases


TOPIC = Topic(
    name="killed",
    title="Every process killed at a random moment after the notice",
    unit="count",
    note=f"SIGKILL up to {WINDOW_S} s after the notice; both save every {EVERY} steps as well. "
    "A kill keeps the page cache: what a power cut would take is not measured here.",
    open=opened,
    rounds=8,
    warm_up=False,
    quick=False,
    ratios=(),
)
