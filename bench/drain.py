"""The whole drain, end to end, beside a careful plain script."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.attempts import POLL_S, Job
from bench.harness import Case, Size, Topic, at_most
from bench.processes import cpu_ms, resident_mib

STEPS = 12
"""Before the notice: past the slow first ones."""


class Drain:
    """One drain and one restart of one kind, in a directory of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.found: dict[str, float] = {}

    def run(self) -> float:
        with tempfile.TemporaryDirectory() as directory:
            job = Job(self.kind, Path(directory))
            try:
                self._run(job)
            finally:
                job.kill()
        return self.found["notice to committed"]

    def value(self, name: str) -> float:
        return self.found[name]

    def _run(self, job: Job) -> None:
        job.start()
        started = job.wait_for_steps(STEPS)[0][1]
        assert job.process is not None
        pid = job.process.pid
        spent, used, peak = cpu_ms(pid), 0.0, 0.0
        told = job.tell()
        while job.process.poll() is None:
            used = max(used, cpu_ms(pid) - spent)
            peak = max(peak, resident_mib(pid, "VmHWM"))
            time.sleep(POLL_S)
        exited = time.time_ns()
        committed, last = job.committed(), job.steps_done()[-1][0]
        assert committed is not None, job.log_tail()
        begun = job.started_ns
        job.start()
        step, healthy = job.wait_for_steps(1)[0]
        self.found = {
            "start to first step": (started - begun) / 1e9,
            "notice to committed": (committed[1] - told) / 1e9,
            "notice to exited": (exited - told) / 1e9,
            "restart to healthy step": (healthy - job.started_ns) / 1e9,
            "steps lost": float(last + 1 - step),
            "agent CPU while draining, ms": used,
            "agent memory at most, MiB": peak,
        }


SHOWN = (
    "start to first step",
    "notice to exited",
    "restart to healthy step",
    "steps lost",
)


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    ours, plain = Drain("drainfsm"), Drain("plain")
    cases: dict[str, Case] = {}
    for drain in (ours, plain):
        cases[f"{drain.kind}: notice to committed"] = drain.run
        for name in SHOWN:
            cases[f"{drain.kind}: {name}"] = partial(drain.value, name)
    for name in ("agent CPU while draining, ms", "agent memory at most, MiB"):
        cases[name] = partial(ours.value, name)
    yield cases


TOPIC = Topic(
    name="drain",
    title="A drain end to end: SIGTERM, save, exit, restart",
    unit="s",
    note="Two gloo ranks, 36 MiB of state, one node, a launcher of thirty lines. drainfsm: "
    "`drainfsm run` with its embedded NATS server. Plain: a SIGTERM handler, an all_reduce after "
    "every step, dcp.save, a `latest` file. Starting is mostly importing torch.",
    open=opened,
    warm_up=False,
    quick=False,
    ratios=(
        at_most("E2E", "notice to committed, beside the plain script",
                "drainfsm: notice to committed", "plain: notice to committed"),
        at_most("E2E", "notice to exited, beside the plain script",
                "drainfsm: notice to exited", "plain: notice to exited"),
        at_most("E2E", "restart to healthy step, beside the plain script",
                "drainfsm: restart to healthy step", "plain: restart to healthy step"),
    ),
)  # fmt: skip
