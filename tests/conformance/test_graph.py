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
from drainfsm_kit.small_world import MODEL_NOTICES

BOUNDS = Bounds(
    notices=(MODEL_NOTICES[0], MODEL_NOTICES[2]), instants=(0, 2, 4, 6, 7, 8), node_count=2
)
"""Those of ``DrainGraph.cfg``."""

Edge = tuple[Any, str, Any]


@pytest.fixture(scope="module")
def code() -> Found:
    return explore(BOUNDS)


@pytest.fixture(scope="module")
def model(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[set[Any], set[Edge]]:
    folder = tmp_path_factory.mktemp("tlc")
    dot = folder / "graph.dot"
    verdict = tlc.run(
        models / "Drain.tla", models / "DrainGraph.cfg", scratch=folder / "states", graph=dot
    )
    assert verdict.exit_code == tlc.HOLDS, verdict.output
    graph = tlc.read_graph(dot)
    views = {name: tlc.freeze(state) for name, state in graph.states.items()}
    return set(views.values()), {(views[a], action, views[b]) for a, action, b in graph.edges}


@pytest.mark.tlc
def test_every_state_of_the_model_is_one_of_the_code_and_the_other_way_round(
    model: tuple[set[Any], set[Edge]], code: Found
) -> None:
    states, _ = model
    assert len(states) > 10_000
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
