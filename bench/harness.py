"""Rounds, ratios and gates: what every topic shares.

A topic has cases. A round runs every case once, one after another; a ratio is formed inside a
round, so that a machine that is busy for a minute is busy for both sides. What is reported of the
rounds is the median and the spread. Nothing absolute is ever compared with a gate.
"""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec

ROUNDS_MIN = 9
"""A median of fewer interleaved rounds moves by more than a fifth on a shared machine."""

Case = Callable[[], float]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much work: the quick subset measures the same things on less."""

    quick: bool = False
    rounds: int = 0
    """0: the topic's own number."""

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """``top / bottom`` of one round."""

    goal_id: str
    name: str
    top: str
    bottom: str
    goal: float | None = None
    """What issue and research ask for; None: shown, not judged."""

    gate: float | None = None
    """60 to 70 % of what a quiet run showed: beyond it something broke."""

    more_is_better: bool

    def holds(self, value: float, limit: float | None) -> bool | None:
        if limit is None:
            return None
        return value >= limit if self.more_is_better else value <= limit


def at_least(
    goal_id: str,
    name: str,
    top: str,
    bottom: str,
    *,
    goal: float | None = None,
    gate: float | None = None,
) -> Ratio:
    """The peer (top) takes so many times as long as we do (bottom)."""
    return Ratio(
        goal_id=goal_id,
        name=name,
        top=top,
        bottom=bottom,
        goal=goal,
        gate=gate,
        more_is_better=True,
    )


def at_most(
    goal_id: str,
    name: str,
    top: str,
    bottom: str,
    *,
    goal: float | None = None,
    gate: float | None = None,
) -> Ratio:
    """We (top) take at most so many times as long as the limit or the peer (bottom)."""
    return msgspec.structs.replace(
        at_least(goal_id, name, top, bottom, goal=goal, gate=gate), more_is_better=False
    )


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One table."""

    name: str
    title: str
    unit: str
    """Of the cases: ``ns an event``, ``s`` …"""

    open: Callable[[Size], AbstractContextManager[dict[str, Case]]]
    ratios: tuple[Ratio, ...]
    rounds: int = ROUNDS_MIN
    quick: bool = True
    """In the quick subset."""

    warm_up: bool = True
    """One round goes before those that count."""

    note: str = ""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    low: float
    high: float


class RatioResult(msgspec.Struct, frozen=True, kw_only=True):
    goal_id: str
    name: str
    spread: Spread
    goal: float | None
    gate: float | None
    more_is_better: bool
    goal_held: bool | None
    gate_held: bool | None


class TopicResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    unit: str
    note: str
    rounds: int
    date: str
    load_average: float
    """Of the last minute, at the end: what else the machine was doing."""

    took_s: float
    cases: dict[str, Spread]
    ratios: list[RatioResult]


def measure(topic: Topic, size: Size) -> TopicResult:
    """All rounds of a topic."""
    began = time.monotonic()
    count = size.rounds or topic.rounds
    with topic.open(size) as cases:
        if topic.warm_up:
            for case in cases.values():
                case()
        rounds = [{name: case() for name, case in cases.items()} for _ in range(count)]
    return TopicResult(
        name=topic.name,
        title=topic.title,
        unit=topic.unit,
        note=topic.note,
        rounds=count,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),  # noqa: TID251
        load_average=round(_load_average(), 1),
        took_s=round(time.monotonic() - began, 1),
        cases={name: spread([r[name] for r in rounds]) for name in rounds[0]},
        ratios=list(_ratios(topic, rounds)),
    )


def _ratios(topic: Topic, rounds: list[dict[str, float]]) -> Iterator[RatioResult]:
    for ratio in topic.ratios:
        if ratio.top not in rounds[0] or ratio.bottom not in rounds[0]:
            raise AssertionError(f"{topic.name}: {ratio.name}: no such case")
        found = spread([r[ratio.top] / r[ratio.bottom] for r in rounds])
        yield RatioResult(
            goal_id=ratio.goal_id,
            name=ratio.name,
            spread=found,
            goal=ratio.goal,
            gate=ratio.gate,
            more_is_better=ratio.more_is_better,
            goal_held=ratio.holds(found.median, ratio.goal),
            gate_held=ratio.holds(found.median, ratio.gate),
        )


def spread(values: list[float]) -> Spread:
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def _load_average() -> float:
    with open("/proc/loadavg") as file:
        return float(file.read().split()[0])


# --- clocks ---------------------------------------------------------------------------------------


def cpu_ns(work: Callable[[], object], *, times: int, per: int = 1) -> float:
    """CPU time of this thread for one of ``per`` things that ``work`` does. For work that waits
    for nothing: a neighbour on the machine is not counted."""
    began = time.thread_time_ns()
    for _ in range(times):
        work()
    return (time.thread_time_ns() - began) / times / per


def wall_s(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
