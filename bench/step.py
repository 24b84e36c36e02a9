"""One event: is it allowed, and what is the state after it? (G1, G2)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from bench.harness import Case, Size, Topic, at_least, at_most, cpu_ns
from bench.peers import Model, Step, statemachine_class, transitions_bare, transitions_guarded
from bench.workload import drain, events, fold, fresh_state, walk
from drainfsm.core.events import EVENT_TYPES
from drainfsm.core.fold import evolve
from drainfsm.core.lifecycle import TABLE
from drainfsm.core.state import State


@contextmanager
def opened(size: Size) -> Iterator[dict[str, Case]]:
    times = size.pick(400, 100)
    bare, guarded, machine = transitions_bare(), transitions_guarded(), statemachine_class()
    first, last = _evolve_of(EVENT_TYPES[0]), _evolve_of(EVENT_TYPES[-1])
    yield {
        "dict lookup": lambda: cpu_ns(_lookup, times=times, per=len(events())),
        "structs.replace of the state": lambda: cpu_ns(_replace, times=times, per=len(events())),
        "evolve": lambda: cpu_ns(_evolve, times=times, per=len(events())),
        "fold": lambda: cpu_ns(lambda: fold(drain()), times=times, per=len(events())),
        "transitions, bare": lambda: _transitions(*bare, times=times // 10),
        "transitions, same checks": lambda: _transitions(*guarded, times=times // 10),
        "python-statemachine": lambda: _statemachine(machine, times=max(1, times // 200)),
        "table: first kind": lambda: cpu_ns(first, times=times * 10),
        "table: last kind": lambda: cpu_ns(last, times=times * 10),
    }


def _lookup() -> None:
    phase = "idle"
    for event in events():
        TABLE[type(event)].get(phase)  # type: ignore[call-overload]


def _replace() -> None:
    state = fresh_state()
    for number in range(len(events())):
        attempt = replace(state.attempt, world_size=number)
        state = State(attempt, state.drain, state.phase)


def _evolve() -> None:
    state = fresh_state()
    for event in events():
        state = evolve(state, event)


def _transitions(model: Model, steps: list[Step], *, times: int) -> float:
    def work() -> None:
        model.state = "idle"
        for step in steps:
            step()

    spent = cpu_ns(work, times=times, per=len(steps))
    assert model.state == "exited", model.state
    return spent


def _statemachine(machine: type, *, times: int) -> float:
    """The machines are made before the clock starts."""
    drains = [machine() for _ in range(times)]
    steps = [[getattr(one, kind) for _, kind, _ in walk()] for one in drains]
    began = time.thread_time_ns()
    for calls in steps:
        for call in calls:
            call()
    return (time.thread_time_ns() - began) / times / len(walk())


def _evolve_of(kind: type) -> Step:
    """Finding the rows of a kind: the part whose cost could hang on its place in the list."""
    phase = next(iter(TABLE[kind]))
    return lambda: TABLE[kind][phase]


TOPIC = Topic(
    name="step",
    title="One event: legality and the next state",
    unit="ns an event",
    note="CPU time of the thread. 19 events of 18 kinds, from a real log of two nodes. transitions "
    "only moves the name of the state; evolve also checks the guards and makes the next State. "
    "With the same checks the peer has the guards as conditions and a callback that "
    "keeps the event, and still makes no state.",
    open=opened,
    ratios=(
        at_least("G1", "evolve, beside transitions with the same checks",
                 "transitions, same checks", "evolve", goal=12, gate=10),
        at_least("G1", "fold, beside transitions with the same checks",
                 "transitions, same checks", "fold", goal=12, gate=8),
        at_least("G1", "evolve, beside bare transitions", "transitions, bare", "evolve"),
        at_least("G1", "fold, beside bare transitions", "transitions, bare", "fold", gate=6.5),
        at_least("G1", "fold, beside python-statemachine",
                 "python-statemachine", "fold", goal=100, gate=100),
        at_most("G1", "fold, beside a dict lookup (floor)", "fold", "dict lookup"),
        at_most("G1", "evolve, beside one structs.replace of the state (floor)",
                "evolve", "structs.replace of the state", gate=4),
        at_most("G2", "last kind, beside the first",
                "table: last kind", "table: first kind", goal=1.3, gate=1.5),
    ),
)  # fmt: skip
