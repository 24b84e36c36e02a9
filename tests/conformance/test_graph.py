"""Two independent searches, TLC's of the model and ours of the code, find the same graph."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core.events import EVENT_TYPES
from drainfsm_kit import tlc
from drainfsm_kit.explore import Bounds, Found, explore
from drainfsm_kit.model_steps import OUT_OF_SCOPE
from drainfsm_kit.small_world import MODEL_NOTICES, NOBODY

BOUNDS = {
    "DrainGraph": Bounds(
        notices=(MODEL_NOTICES[0], MODEL_NOTICES[2]), instants=(0, 2, 4, 6, 7, 8), node_count=2
    ),
    "DrainMerge": Bounds(notices=MODEL_NOTICES[:2], instants=(0, 6, 8), node_count=1),
}
"""By configuration: all stages of a drain; and one notice that is given again with another
deadline, in another revision."""

pytestmark = pytest.mark.timeout(0)
"""How long two exhaustive searches take says how busy the machine is."""

FOR_THE_RULES_ONLY = "whole"
"""A variable that no action of the model looks at."""

Edge = tuple[Any, str, Any]


@pytest.fixture(scope="module", params=BOUNDS)
def config(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def code(config: str) -> Found:
    return explore(BOUNDS[config])


@pytest.fixture(scope="module")
def model(
    config: str, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[set[Any], set[Edge]]:
    folder = tmp_path_factory.mktemp("tlc")
    dot = folder / "graph.dot"
    verdict = tlc.run(
        models / "Drain.tla", models / f"{config}.cfg", scratch=folder / "states", graph=dot
    )
    assert verdict.exit_code == tlc.HOLDS, verdict.output
    graph = tlc.read_graph(dot)
    views = {}
    for name, state in graph.states.items():
        del state[FOR_THE_RULES_ONLY]
        state["drain"] = _heard_of(state["drain"])
        views[name] = tlc.freeze(state)
    return set(views.values()), {(views[a], action, views[b]) for a, action, b in graph.edges}


def _heard_of(drain: tlc.Fields) -> tlc.Fields:
    """The model has something for each notice that may come, the code for those that came."""
    return frozenset(
        (name, frozenset(one for one in value if one[1] not in (NOBODY, 0)))
        if name in ("notices", "withdrawn")
        else (name, value)
        for name, value in drain
    )


@pytest.mark.tlc
def test_every_state_of_the_model_is_one_of_the_code_and_the_other_way_round(
    model: tuple[set[Any], set[Edge]], code: Found
) -> None:
    states, _ = model
    assert len(states) > 1_000
    only_model, only_code = states - code.views, code.views - states
    assert not only_model, f"{len(only_model)} states, the first: {next(iter(only_model))}"
    assert not only_code, f"{len(only_code)} states, the first: {next(iter(only_code))}"


@pytest.mark.tlc
def test_every_step_of_the_model_is_one_of_the_code_and_the_other_way_round(
    model: tuple[set[Any], set[Edge]], code: Found
) -> None:
    _, edges = model
    for who, only in (("model", edges - code.edges), ("code", code.edges - edges)):
        actions = Counter(action for _, action, _ in only)
        assert not only, f"only the {who} takes {actions}, the first: {next(iter(only))}"


@pytest.mark.tlc
def test_every_event_in_scope_occurs(model: tuple[set[Any], set[Edge]]) -> None:
    states, _ = model
    occurred = {kind for state in states for kind in dict(state)["kinds"]}
    out_of_scope = {kind.__name__ for kind in OUT_OF_SCOPE}
    assert occurred == {kind.__name__ for kind in EVENT_TYPES} - out_of_scope
