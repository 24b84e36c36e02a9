"""Hundreds of agents at one coordinator, over real connections."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm_kit.live_scale import Cost, measure
from drainfsm_kit.simulator import scale

NODES = 200


@pytest.fixture(autouse=True)
def own_limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def cost(tmp_path: Path) -> Cost:
    """With fewer descriptors at the start than there are nodes."""
    return measure(NODES, tmp_path, soft_limit=150)


def test_a_drain_of_many_real_connections_costs_what_the_simulator_says(cost: Cost) -> None:
    assert cost["descriptors of node 0"] > NODES
    assert cost["records in the stream"] == cost["records"] <= NODES + 20
    simulated = scale.measure(64)
    messages_a_node = simulated.message_count / (simulated.node_count - 1)
    assert cost["messages a node"] == pytest.approx(messages_a_node, abs=2)
