"""A report over many jobs: what an attempt costs, from the bytes of its records to the sums."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from bench.harness import Case, Size, Topic, at_most, cpu_ns
from bench.workload import drain
from drainfsm.core.codec import decode, encode_lines
from drainfsm.core.fold import Fold
from drainfsm.views.fleet import AttemptFilter, Fleet
from drainfsm.views.jobs import jobs_of_file


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    jobs = size.pick(1_000, 100)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "jobs.jsonl"
        with path.open("wb") as file:
            for number in range(jobs):
                records = [replace(record, job_id=f"job-{number}") for record in drain()]
                file.write(encode_lines(records))
        yield {
            "report --all": lambda: cpu_ns(lambda: _report(path), times=1, per=jobs),
            "decode, fold": lambda: cpu_ns(lambda: _fold(path), times=1, per=jobs),
        }


def _report(path: Path) -> None:
    fleet = Fleet(AttemptFilter())
    for job in jobs_of_file(path):
        fleet.add(job)
    fleet.report()


def _fold(path: Path) -> None:
    """Every record of the same file, and nothing else."""
    folds: dict[str, Fold] = {}
    with path.open("rb") as file:
        for record in map(decode, file):
            if record.job_id not in folds:
                folds[record.job_id] = Fold(job_id=record.job_id, epoch=1)
            folds[record.job_id].read(record)


TOPIC = Topic(
    name="fleet",
    title="A report over many jobs, by attempt",
    unit="ns",
    open=opened,
    ratios=(
        at_most(
            "R1",
            "report --all, beside decoding and folding",
            "report --all",
            "decode, fold",
            gate=6.5,
        ),
    ),
)
