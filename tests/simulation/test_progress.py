"""Where nothing goes wrong the job gets on; code that lets it stand still is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drainfsm.core import decide_save as saving
from drainfsm.core.deadline import budget_of
from drainfsm.core.draft import Draft
from drainfsm.core.state import Phase, State
from drainfsm.runtime.coordinator.actions import Actions
from drainfsm.runtime.rank.orders import Action, StandingOrders
from drainfsm_kit.simulator.seeds import plan_of
from drainfsm_kit.simulator.simulation import simulate

SEEDS_MAX = 600
Plant = Callable[[pytest.MonkeyPatch], None]


def ends_at_the_deadline_of_what_was_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Actions._tell_backstop

    def forgets(actions: Actions, state: State) -> None:
        if state.phase is not Phase.CANCELLED:
            tell(actions, state)

    monkeypatch.setattr(Actions, "_tell_backstop", forgets)


def saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def skips(draft: Draft) -> None:
        budget = budget_of(draft.state, now_unix_ms=draft.now_unix_ms)
        saving.skip(draft, "not today", budget=budget)

    monkeypatch.setattr(saving, "decide_save", skips)


def leaves_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = StandingOrders._decide

    def leaves(orders: StandingOrders, step: int, relax: Callable[[], None]) -> Action | None:
        found = decide(orders, step, relax)
        return Action.LEAVE if found is Action.PASS and step == 40 else found

    monkeypatch.setattr(StandingOrders, "_decide", leaves)


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (ends_at_the_deadline_of_what_was_called_off, "since its drain was called off"),
        (saves_nothing, "a save that fits is not made: not today"),
        (leaves_before_its_end, "the job has finished, and rank"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_job_that_does_not_get_on_is_found(
    plant: Plant, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(1, SEEDS_MAX):
        plan = plan_of(seed)
        if any(says in problem for problem in simulate(plan).problems):
            monkeypatch.undo()
            assert simulate(plan).problems == []
            return
    raise AssertionError("no seed noticed")
