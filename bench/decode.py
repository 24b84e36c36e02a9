"""From the bytes of a record to the new state (G3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from bench.harness import Case, Size, Topic, at_least, at_most, cpu_ns
from bench.peers import Model, Step, transitions_bare, transitions_guarded
from bench.workload import drain, encoded, events
from drainfsm.core.codec import decode
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    times, per = size.pick(400, 100), len(events())
    lines = encoded(drain())
    bare, guarded = transitions_bare(), transitions_guarded()
    parser = msgspec.json.Decoder(Record)
    yield {
        "decode, fold": lambda: cpu_ns(lambda: _ours(lines), times=times, per=per),
        "decode alone": lambda: cpu_ns(
            lambda: [decode(line) for line in lines], times=times, per=per
        ),
        "msgspec alone (floor)": lambda: cpu_ns(
            lambda: [parser.decode(line) for line in lines], times=times, per=per
        ),
        "json.loads alone": lambda: cpu_ns(
            lambda: [json.loads(line) for line in lines], times=times // 4, per=per
        ),
        "json.loads, transitions bare": lambda: cpu_ns(
            lambda: _peer(lines, *bare), times=times // 10, per=per
        ),
        "json.loads, transitions same checks": lambda: cpu_ns(
            lambda: _peer(lines, *guarded), times=times // 10, per=per
        ),
    }


def _ours(lines: list[bytes]) -> None:
    fold = Fold(job_id=drain()[0].job_id, epoch=1)
    fold.read_all(map(decode, lines))


def _peer(lines: list[bytes], model: Model, steps: list[Step]) -> None:
    model.state = "idle"
    calls = iter(steps)
    for line in lines:
        for _ in json.loads(line)["events"]:
            next(calls)()


TOPIC = Topic(
    name="decode",
    title="JSON record to the new state",
    unit="ns an event",
    note="CPU time of the thread. Records of 428 bytes on average: every decision carries its "
    "whole budget. Both sides read the same bytes.",
    open=opened,
    ratios=(
        at_least("G3", "beside json.loads and transitions with the same checks",
                 "json.loads, transitions same checks", "decode, fold", goal=12, gate=5.5),
        at_least("G3", "beside json.loads and bare transitions",
                 "json.loads, transitions bare", "decode, fold"),
        at_least("G3", "limit: json.loads beside msgspec, nothing else done",
                 "json.loads alone", "msgspec alone (floor)"),
        at_most("G3", "decode, beside msgspec alone (floor)",
                "decode alone", "msgspec alone (floor)", goal=1.3, gate=1.6),
    ),
)  # fmt: skip
