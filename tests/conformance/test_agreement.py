"""What coordinator, agents and ranks do to hold at one step is a behaviour of ``Agreement``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.coordinator.actions import Actions
from drainfsm.runtime.rank.orders import Action, StandingOrders
from drainfsm.runtime.wire import node_messages as n
from drainfsm_kit import traces
from drainfsm_kit.agreement_world import LAST_STEP, RANKS, ROUNDS, walk

WALKS = range(80)
Plant = Callable[[pytest.MonkeyPatch], None]
CONFIG = f"""SPECIFICATION TraceSpec
CONSTANTS
  Ranks = {{{", ".join(map(str, RANKS))}}}
  LastStep = {LAST_STEP}
  Rounds = {ROUNDS}
  Crashes = FALSE
  Fault = "none"
INVARIANT Told
"""

refused = partial(traces.refused, module="AgreementTrace", config=CONFIG)

pytestmark = [pytest.mark.tlc, pytest.mark.timeout(0)]


def test_runs_of_the_code_are_behaviours_of_the_model(models: Path, tmp_path: Path) -> None:
    walks = [walk(seed) for seed in WALKS]
    assert refused(walks, models, tmp_path) == []
    taken = Counter(step["action"] for trace in walks for step in trace)
    assert taken["RanksQuiesced"] > 10
    assert taken["DrainCancelled"] > 10
    assert any(
        trace[-1]["after"]["phase"] == "quiesced" and trace[-1]["after"]["round"] == ROUNDS
        for trace in walks
    )


def _takes_answers_to_what_was_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Actions.held

    def takes(actions: Actions, node: int, message: n.NodeHeld) -> None:
        held(actions, node, replace(message, drain_id=actions._held_drain))

    monkeypatch.setattr(Actions, "held", takes)


def _passes_the_stop_step(monkeypatch: pytest.MonkeyPatch) -> None:
    release = LocalRanks.release_to
    monkeypatch.setattr(LocalRanks, "release_to", lambda ranks, step: release(ranks, step + 1))


def _trains_on_while_held(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = StandingOrders._decide
    monkeypatch.setattr(
        StandingOrders,
        "_decide",
        lambda orders, step, relax: decide(orders, step, relax) or Action.PASS,
    )


@pytest.mark.parametrize(
    "plant",
    [_takes_answers_to_what_was_called_off, _passes_the_stop_step, _trains_on_while_held],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_code_that_does_something_else_is_refused(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, models: Path, tmp_path: Path
) -> None:
    plant(monkeypatch)
    assert refused([walk(seed) for seed in WALKS], models, tmp_path)
