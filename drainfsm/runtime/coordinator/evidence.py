"""What earlier attempts recorded: durations of real saves, and when they fell silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from drainfsm.core.budget import SAMPLES_MAX, Sample
from drainfsm.core.codec import decode
from drainfsm.core.events import AttemptStarted
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import DrainfsmError, RecordUnreadableError
from drainfsm.log.jetstream import connect
from drainfsm.log.journal import journals, read_journal
from drainfsm.log.server import NatsServer
from drainfsm.runtime.liveness import sign_of_life
from drainfsm.runtime.threads import in_thread
from drainfsm.store import ObjectStore
from drainfsm.store.kept_log import kept_objects

STREAM_S = 2.0
"""For the stream, where this machine has no journal: a start waits no longer for it."""

STREAM_ATTEMPTS_MAX = 4
ATTEMPTS_MAX = 32
"""Each attempt carries the samples of those before it; more are read only where some left none."""


class PastAttempts(msgspec.Struct, frozen=True, kw_only=True):
    samples: tuple[Sample, ...] = ()
    """Newest last."""

    last_seen_unix_ms: int | None = None
    """The last record of the newest earlier attempt."""


def collect(state_dir: Path, *, job_id: str, before_epoch: int) -> PastAttempts:
    """From the journals of earlier attempts. A damaged one counts up to its damage."""
    paths = journals(state_dir, job_id)
    earlier = {epoch: read_journal(path) for epoch, path in paths.items() if epoch < before_epoch}
    found = collect_from(earlier, job_id=job_id)
    sign = sign_of_life(state_dir, job=job_id)
    if sign is None or sign.epoch != before_epoch - 1:
        return found
    last_seen = max(found.last_seen_unix_ms or 0, sign.touched_unix_ns // 1_000_000)
    return msgspec.structs.replace(found, last_seen_unix_ms=last_seen)


async def collect_from_stream(
    server: NatsServer, *, job_id: str, before_epoch: int
) -> PastAttempts:
    """The same for a replacement on another machine, as far as the server answers in time."""
    earlier: dict[int, Iterator[Record]] = {}
    try:
        async with asyncio.timeout(STREAM_S):
            connection = await connect(server, timeout_s=STREAM_S)
            try:
                for epoch in _newest_first(before_epoch):
                    subject = subject_of(job_id=job_id, epoch=epoch)
                    messages = [one.data async for one in connection.delivered(subject)]
                    earlier[epoch] = _readable(messages)
            finally:
                await connection.close()
    except (TimeoutError, DrainfsmError, OSError):
        pass  # the shipper tells what is wrong with the server; without evidence sizing decides
    return collect_from(earlier, job_id=job_id)


async def collect_from_store(store: ObjectStore, *, job_id: str, before_epoch: int) -> PastAttempts:
    """The same where there is no shared server: from what attempts have put beside the
    checkpoints, as far as the store answers in time."""

    def read() -> dict[int, Iterator[Record]]:
        return {
            epoch: _readable([line for _, data in kept for line in data.splitlines()])
            for epoch in _newest_first(before_epoch)
            if (kept := list(kept_objects(store, epoch=epoch)))
        }

    try:
        async with asyncio.timeout(STREAM_S):
            return collect_from(await in_thread("kept-log", read), job_id=job_id)
    except (TimeoutError, DrainfsmError, OSError):
        return PastAttempts()


def _newest_first(before_epoch: int) -> range:
    return range(before_epoch - 1, max(0, before_epoch - 1 - STREAM_ATTEMPTS_MAX), -1)


def _readable(messages: list[bytes]) -> Iterator[Record]:
    """Readers skip what is not a record."""
    for data in messages:
        with contextlib.suppress(RecordUnreadableError):
            yield decode(data)


def collect_from(earlier: Mapping[int, Iterator[Record]], *, job_id: str) -> PastAttempts:
    """The same from the records of earlier attempts, by epoch."""
    last_seen: int | None = None
    for epoch in sorted(earlier, reverse=True)[:ATTEMPTS_MAX]:
        fold, seen = _fold(earlier[epoch], job_id=job_id, epoch=epoch)
        last_seen = last_seen or seen
        if fold.state.attempt.started:
            return PastAttempts(
                samples=fold.state.attempt.samples[-SAMPLES_MAX:], last_seen_unix_ms=last_seen
            )
    return PastAttempts(last_seen_unix_ms=last_seen)


def store_of(records: Iterator[Record]) -> str:
    """Identity of the store that an attempt was claimed in; empty: its log does not say."""
    try:
        first = next(records, None)
    except (DrainfsmError, OSError):
        first = None
    events = first.events if first is not None else ()
    return next((event.store_id or "" for event in events if isinstance(event, AttemptStarted)), "")


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
