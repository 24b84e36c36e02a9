"""What earlier attempts on this machine recorded: durations of real saves, and when they fell
silent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from drainfsm.core.budget import SAMPLES_MAX, Sample
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record
from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import journals, read_journal

ATTEMPTS_MAX = 32
"""Each attempt carries the samples of those before it; more are read only where some left none."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    samples: tuple[Sample, ...] = ()
    """Newest last."""

    last_seen_unix_ms: int | None = None
    """Of the newest earlier attempt."""


def collect(state_dir: Path, *, job_id: str, before_epoch: int) -> Evidence:
    """From the journals of earlier attempts. A damaged one counts up to its damage."""
    paths = journals(state_dir, job_id)
    earlier = {epoch: read_journal(path) for epoch, path in paths.items() if epoch < before_epoch}
    return collect_from(earlier, job_id=job_id)


def collect_from(earlier: Mapping[int, Iterator[Record]], *, job_id: str) -> Evidence:
    """The same from the records of earlier attempts, by epoch."""
    last_seen: int | None = None
    for epoch in sorted(earlier, reverse=True)[:ATTEMPTS_MAX]:
        fold, seen = _fold(earlier[epoch], job_id=job_id, epoch=epoch)
        last_seen = last_seen or seen
        if fold.state.started:
            return Evidence(samples=fold.state.samples[-SAMPLES_MAX:], last_seen_unix_ms=last_seen)
    return Evidence(last_seen_unix_ms=last_seen)


def _fold(records: Iterator[Record], *, job_id: str, epoch: int) -> tuple[Fold, int | None]:
    fold = Fold(job_id=job_id, epoch=epoch)
    seen: int | None = None
    try:
        for record in records:
            fold.read(record)
            seen = record.at_unix_ms
    except (DrainfsmError, OSError):
        pass  # the shipper and replay report the damage; evidence is what can be had
    return fold, seen
