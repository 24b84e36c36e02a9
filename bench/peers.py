"""The same lifecycle in other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.workload import events, fresh_state, walk
from drainfsm.core.fold import evolve
from drainfsm.core.lifecycle import LIFECYCLE, Guard, acts_later
from drainfsm.core.state import Phase

Step = Callable[[], object]


class Model:
    """What ``transitions`` moves."""

    state: str
    last: object


def transitions_bare() -> tuple[Model, list[Step]]:
    """``transitions.Machine`` with all arrows of the table, without its guards: it moves a name
    and checks that the move is drawn. One call an event of the drain."""
    from transitions import Machine

    model = Model()
    rows = [_row(row.kind, source, row.dest) for row, source in _arrows()]
    Machine(model, _states(), initial="idle", transitions=rows, auto_transitions=False)
    return model, [getattr(model, kind) for _, kind, _ in walk()]


def transitions_guarded() -> tuple[Model, list[Step]]:
    """The same with the guards as ``conditions``, so that it checks what ``evolve`` checks, and a
    callback that keeps the event. The state that guards look at is given to it, free of charge."""
    from transitions import Machine

    model = Model()
    rows = [
        _row(row.kind, source, row.dest)
        | {"conditions": [] if row.guard is None else [_condition(row.guard)], "after": _keep}
        for row, source in _arrows()
    ]
    Machine(
        model,
        _states(),
        initial="idle",
        transitions=rows,
        auto_transitions=False,
        send_event=True,
    )
    state, steps = fresh_state(), list[Step]()
    for event in events():
        trigger = getattr(model, walk()[len(steps)][1])
        steps.append(_call(trigger, state=state, event=event))
        state = evolve(state, event)
    return model, steps


def _call(trigger: Callable[..., object], **given: object) -> Step:
    return lambda: trigger(**given)


def _condition(guard: Guard) -> Callable[[Any], bool]:
    return lambda data: guard(data.kwargs["state"], data.kwargs["event"])


def _keep(data: Any) -> None:
    data.model.last = data.kwargs["event"]


def _states() -> list[str]:
    return [phase.value for phase in Phase]


def _row(kind: str, source: str, dest: Phase | None) -> dict[str, Any]:
    return {"trigger": kind, "source": source, "dest": None if dest is None else dest.value}


def _arrows() -> list[tuple[Any, str]]:
    """Without the arrow of a notice far ahead: unguarded, the two could not be told apart."""
    return [
        (row, source.value)
        for row in LIFECYCLE
        if row.guard is not acts_later
        for source in sorted(row.sources)
    ]


def statemachine_class() -> type[Any]:
    """python-statemachine, with the arrows that the drain takes."""
    from statemachine import State, StateMachine

    first, last = walk()[0][0], walk()[-1][2]
    names = dict.fromkeys(name for before, _, after in walk() for name in (before, after))
    states: dict[str, Any] = {
        name: State(initial=name == first, final=name == last) for name in names
    }
    arrows: dict[str, Any] = {}
    for before, kind, after in dict.fromkeys(walk()):
        same = {"internal": True} if before == after else {}
        arrow = states[before].to(states[after], **same)
        arrows[kind] = arrows[kind] | arrow if kind in arrows else arrow
    body = {f"in_{name}": state for name, state in states.items()}
    return type("Drain", (StateMachine,), body | arrows)
