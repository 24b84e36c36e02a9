"""Replay of what was archived (G5): an export of many attempts, the journal of one."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from bench.harness import Case, Size, Topic, at_least, at_most, cpu_ns
from bench.workload import attempts, drain, events, fold, fresh_state, walk
from drainfsm.core.codec import encode_lines
from drainfsm.core.fold import Fold, evolve
from drainfsm.core.records import Record
from drainfsm.log.frames import PREFIX, read_header
from drainfsm.log.journal import Journal, read_journal
from drainfsm.views.history import read_file

DETAIL = "a short text of about forty characters .."


class Drain(Aggregate):
    """The peer's drain: an event has the new state and three fields, a tenth of ours."""

    def __init__(self) -> None:
        self.phase = "idle"

    @event("Moved")
    def move(self, phase: str, at_unix_ms: int, step: int, detail: str) -> None:
        self.phase = phase


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    times, per = size.pick(100, 30), len(events())
    parser = msgspec.json.Decoder(Record)
    with tempfile.TemporaryDirectory() as directory:
        count = size.pick(100, 25)
        path, export = Path(directory) / "000001.journal", Path(directory) / "export.jsonl"
        _write(path)
        export.write_bytes(encode_lines(attempts(count)))
        memory = _Aggregates({})
        on_disk = _Aggregates(
            {
                "PERSISTENCE_MODULE": "eventsourcing.sqlite",
                "SQLITE_DBNAME": f"{directory}/events.sqlite",
            }
        )
        yield {
            "export: read, fold": lambda: cpu_ns(
                lambda: _replay(export, count), times=max(1, times // 30), per=per * count
            ),
            "export: by hand, split, msgspec, evolve": lambda: cpu_ns(
                lambda: _replay_by_hand(export, parser), times=max(1, times // 30), per=per * count
            ),
            "read_journal, fold": lambda: cpu_ns(lambda: _ours(path), times=times, per=per),
            "by hand: split, crc, msgspec, evolve": lambda: cpu_ns(
                lambda: _by_hand(path, parser), times=times, per=per
            ),
            "eventsourcing, in memory": lambda: cpu_ns(
                memory.get, times=max(1, times // 10), per=per
            ),
            "eventsourcing, sqlite": lambda: cpu_ns(
                on_disk.get, times=max(1, times // 10), per=per
            ),
        }
        on_disk.close()


class _Aggregates:
    def __init__(self, environment: dict[str, str]) -> None:
        self._application: Any = Application(env=environment)
        one: Any = Drain()
        for _, kind, phase in walk()[1:]:
            one.move(phase, 1_800_000_000_000, 100, f"{kind}: {DETAIL}")
        self._application.save(one)
        self._id = one.id

    def get(self) -> None:
        assert self._application.repository.get(self._id).phase == "exited"

    def close(self) -> None:
        self._application.close()


def _write(path: Path) -> None:
    """As an agent writes it: one append a decision."""
    records = attempts(1)
    journal = Journal.open(path, job_id=records[0].job_id, epoch=1)
    for record in records:
        journal.append(record)
    journal.close()


def _replay(path: Path, count: int) -> None:
    logs = read_file(path).logs
    assert len(logs) == count
    for log in logs:
        assert fold(log.records).phase == "exited"


def _replay_by_hand(path: Path, parser: msgspec.json.Decoder[Record]) -> None:
    """The least that a reader of these bytes can do."""
    epoch, state = 0, fresh_state()
    for line in path.read_bytes().splitlines():
        record = parser.decode(line)
        if record.epoch != epoch:
            epoch, state = record.epoch, fresh_state()
        for one in record.events:
            state = evolve(state, one)


def _ours(path: Path) -> None:
    fold = Fold(job_id=drain()[0].job_id, epoch=1)
    fold.read_all(read_journal(path))
    assert fold.state.phase == "exited"


def _by_hand(path: Path, parser: msgspec.json.Decoder[Record]) -> None:
    """The least that a reader of these bytes can do."""
    data = path.read_bytes()
    at, state = read_header(data)[1], fresh_state()
    while at < len(data):
        length, checksum = PREFIX.unpack_from(data, at)
        payload = data[at + 8 : at + 8 + length]
        at += 8 + length
        assert zlib.crc32(payload) == checksum
        for one in parser.decode(payload).events:
            state = evolve(state, one)
    assert state.phase == "exited"


TOPIC = Topic(
    name="journal",
    title="Replay of archived attempts",
    unit="ns an event",
    note="CPU time of the thread, opening and reading the files included. The peer's events are a "
    "tenth of the size of ours.",
    open=opened,
    ratios=(
        at_least("G5", "beside eventsourcing, in memory",
                 "eventsourcing, in memory", "export: read, fold", goal=12, gate=6.5),
        at_least("G5", "beside eventsourcing, sqlite",
                 "eventsourcing, sqlite", "export: read, fold", goal=12, gate=8.5),
        at_most("G5", "beside the loop by hand", "export: read, fold",
                "export: by hand, split, msgspec, evolve", goal=1.25, gate=1.6),
        at_least("G5", "one journal of 16 records, beside eventsourcing, sqlite",
                 "eventsourcing, sqlite", "read_journal, fold", gate=5.5),
        at_most("G5", "one journal, beside the loop by hand", "read_journal, fold",
                "by hand: split, crc, msgspec, evolve", gate=2.1),
    ),
)  # fmt: skip
