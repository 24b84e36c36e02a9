"""What is folded, decoded, replayed and shipped: the log of a drain of real agents."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from drainfsm.core.chain import line_digest
from drainfsm.core.codec import decode_lines, encode
from drainfsm.core.events import Event, UnknownFact, kind_of
from drainfsm.core.fold import Fold, evolve
from drainfsm.core.records import Record
from drainfsm.core.state import State, first_state

HISTORIES = Path(__file__).parents[1] / "tests/replay/histories"
HISTORY = HISTORIES / "signal_two_nodes_resumed_finished.jsonl"
"""Two nodes, from the start of the attempt over a saved drain to its exit, as they wrote it."""


@functools.cache
def drain() -> tuple[Record, ...]:
    """One attempt with one drain: 16 records, 19 events."""
    records = decode_lines(HISTORY.read_bytes())
    return tuple(chained(record for record in records if record.epoch == 1))


def chained(records: Iterable[Record]) -> Iterator[Record]:
    """As they are written now: the history is older than the chain."""
    before = ""
    for record in records:
        linked = replace(record, before=before)
        before = line_digest(encode(linked))
        yield linked


@functools.cache
def events() -> tuple[Event, ...]:
    return tuple(e for r in drain() for e in r.events if not isinstance(e, UnknownFact))


@functools.cache
def walk() -> tuple[tuple[str, str, str], ...]:
    """The drain as a table knows it: state before, event, state after."""
    state = fresh_state()
    steps = []
    for event in events():
        before, state = state, evolve(state, event)
        steps.append((before.phase.value, kind_of(event), state.phase.value))
    return tuple(steps)


def fresh_state() -> State:
    return first_state(job_id=drain()[0].job_id, epoch=1)


def attempts(count: int) -> list[Record]:
    """The same attempt so often, each in an epoch of its own."""
    return [
        replace(record, id=f"{epoch}.{position}", epoch=epoch)
        for epoch in range(1, count + 1)
        for position, record in enumerate(drain())
    ]


def fold(records: tuple[Record, ...] | list[Record]) -> State:
    """One attempt's records to its last state."""
    folded = Fold(job_id=records[0].job_id, epoch=records[0].epoch)
    folded.read_all(records)
    return folded.state


def encoded(records: tuple[Record, ...] | list[Record]) -> list[bytes]:
    return [encode(record) for record in records]
