"""Exhaustive search of the real core: ``decide`` and ``evolve`` in a small modelled world.

The world is that of ``specs/models/Drain.tla``: notices in any order and number, reports that
come when the effect that asks for them was recorded, or never, a clock of few instants, a
coordinator that may die. Breadth first, hence shortest traces; two independent searches, this one
and TLC's, must find the same states and the same steps between them (``tests/conformance``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from drainfsm.core import inputs as i
from drainfsm.core.deadline import next_wake_unix_ms, wait_until_unix_ms
from drainfsm.core.decider import decide
from drainfsm.core.effects import effects_of
from drainfsm.core.events import KINDS, Event
from drainfsm.core.fold import evolve
from drainfsm.core.lifecycle import TABLE
from drainfsm.core.records import Record
from drainfsm.core.rules import broken_rules
from drainfsm.core.state import Phase, State
from drainfsm.errors import EventRefusedError, InputRejectedError, NoticeRejectedError
from drainfsm_kit.model_steps import OUT_OF_SCOPE
from drainfsm_kit.odd_bytes import examples_of
from drainfsm_kit.small_world import (
    INSTANTS_UNIX_MS,
    MODEL_NOTICES,
    WAIT_MS,
    Given,
    ModelNotice,
    given_inputs,
    initial_state,
    notice_of,
    view_of,
)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the world is searched."""

    notices: tuple[ModelNotice, ...] = MODEL_NOTICES
    drain_count_max: int = 2
    instants: tuple[int, ...] = tuple(range(len(INSTANTS_UNIX_MS)))
    node_count: int = 2
    crashes: bool = False


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The folded state, and what is outside of the coordinator."""

    state: State
    instant: int
    clock: int = 1
    """The instant's place among those of the bounds."""

    waited_ms: int = 0
    """Since the instant began."""

    heard: frozenset[ModelNotice] = frozenset()
    ordered: frozenset[str] = frozenset()
    """Effects that were run in the present drain."""

    coordinator: str = "up"
    kinds: tuple[str, ...] = ()
    """Class names of the events of the last record."""

    history: tuple[Record, ...] = ()

    @property
    def now_unix_ms(self) -> int:
        return INSTANTS_UNIX_MS[self.instant] + self.waited_ms

    @property
    def waiting(self) -> bool:
        drain = self.state.drain
        held = drain is not None and drain.hold is not None
        return held and self.state.phase in (Phase.NOTICED, Phase.QUIESCING)

    @property
    def expired(self) -> bool:
        return self.waiting and self.now_unix_ms >= wait_until_unix_ms(self.state)

    def view(self) -> Any:
        """What the model has for it: worlds of one view behave alike."""
        return view_of(
            self.state,
            clock=self.clock,
            expired=self.expired,
            heard=self.heard,
            coordinator=self.coordinator,
            kinds=self.kinds,
        )


Step = tuple[str, World]


def first_world(bounds: Bounds) -> World:
    return World(state=initial_state(node_count=bounds.node_count), instant=bounds.instants[0])


def steps(world: World, bounds: Bounds) -> Iterator[Step]:
    """Everything that may happen next, by the name of the model's action."""
    if world.coordinator == "up":
        for given in given_inputs(world.state, world.ordered, bounds.notices, bounds.node_count):
            if (after := _decided(world, given, bounds)) is not None:
                yield given.action, after
        if bounds.crashes:
            yield "Crash", replace(world, coordinator="down", kinds=())
    elif world.coordinator == "down":
        yield "FindLost", replace(world, coordinator="found", kinds=())
    for event in FOREIGN:
        if world.state.phase not in TABLE[type(event)]:
            yield "Foreign", _read(world, event)
    if world.waiting and not world.expired:
        yield "Wait", replace(world, waited_ms=world.waited_ms + WAIT_MS, kinds=())
    later = [instant for instant in bounds.instants if instant > world.instant]
    if later:
        moved = {"instant": later[0], "clock": world.clock + 1, "waited_ms": 0}
        yield "Advance", replace(world, kinds=(), **moved)


FOREIGN: tuple[Event, ...] = tuple(
    msgspec.convert(example, Event)
    for example in examples_of(Event)
    if not issubclass(KINDS[example["kind"]], OUT_OF_SCOPE)
)
"""One event of each kind, from somebody who is wrong about the state."""


def _read(world: World, event: Event) -> World:
    """The world after the fold has read it, which refuses it."""
    try:
        return replace(world, state=evolve(world.state, event))
    except EventRefusedError:
        return world


def _decided(world: World, given: Given, bounds: Bounds) -> World | None:
    """The world after the input; None if it changes nothing."""
    if isinstance(given.input, i.Tick):
        wake = next_wake_unix_ms(world.state)
        if wake is None or world.now_unix_ms < wake:
            return None
    try:
        events = decide(world.state, given.input, now_unix_ms=world.now_unix_ms)
    except (InputRejectedError, NoticeRejectedError):
        return None
    state, ordered = world.state, world.ordered
    for event in events:
        state = evolve(state, event)
    if state.drain_count > bounds.drain_count_max:
        return None
    if state.drain_count > world.state.drain_count:
        ordered = frozenset()
    effects = {type(effect).__name__ for event in events for effect in effects_of(event, state)}
    heard = world.heard
    if given.notice is not None and state.phase.active and _is_held(given.notice, state):
        heard = (heard if world.state.phase.active else frozenset()) | {given.notice}
    if not events and heard == world.heard:
        return None
    history = world.history
    if events:
        history = (*history, _record(world, events))
    return replace(
        world,
        state=state,
        ordered=ordered | effects,
        heard=heard,
        kinds=tuple(type(event).__name__ for event in events),
        history=history,
    )


def _is_held(model: ModelNotice, state: State) -> bool:
    """Not so for a late repeat of what was taken back before the drain opened."""
    return notice_of(model).identity in state.current.notices


def _record(world: World, events: tuple[Any, ...]) -> Record:
    return Record(
        id=f"r{len(world.history)}",
        job_id=world.state.attempt.job_id,
        epoch=world.state.attempt.epoch,
        follows=len(world.history),
        at_unix_ms=world.now_unix_ms,
        events=events,
    )


class Found(msgspec.Struct, frozen=True):
    """The graph of views, and the first broken rule with the steps that lead to it."""

    views: set[Any]
    edges: set[tuple[Any, str, Any]]
    world_count: int
    broken: str
    trace: tuple[str, ...]


Key = tuple[Any, frozenset[str]]


def explore(bounds: Bounds, *, rules: Callable[[World], list[str]] | None = None) -> Found:
    """Search every reachable world, breadth first; stop at the first that breaks a rule."""
    check = rules or (lambda world: broken_rules(world.history))
    first = first_world(bounds)
    start = (first.view(), first.ordered)
    worlds: dict[Key, World] = {start: first}
    came_from: dict[Key, tuple[Key, str]] = {}
    edges: set[tuple[Any, str, Any]] = set()
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for action, after in steps(worlds[here], bounds):
            there = (after.view(), after.ordered)
            edges.add((here[0], action, there[0]))
            if there in worlds:
                continue
            worlds[there] = after
            came_from[there] = (here, action)
            queue.append(there)
            if after.kinds and (broken := check(after)):
                trace = _trace(there, came_from)
                return Found({view for view, _ in worlds}, edges, len(worlds), broken[0], trace)
    return Found({view for view, _ in worlds}, edges, len(worlds), "", ())


def _trace(key: Key, came_from: dict[Key, tuple[Key, str]]) -> tuple[str, ...]:
    actions: list[str] = []
    while key in came_from:
        key, action = came_from[key]
        actions.append(action)
    return tuple(reversed(actions))
