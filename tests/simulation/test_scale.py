"""What a drain costs the coordinator grows with the job's nodes, not with its ranks squared."""

from __future__ import annotations

import pytest

from drainfsm_kit.simulator.__main__ import main
from drainfsm_kit.simulator.scale import Cost, measure

SIZES = (64, 256, 1_024)


@pytest.fixture(scope="module")
def costs() -> list[Cost]:
    return [measure(size) for size in SIZES]


def test_every_node_sends_and_receives_the_same_few_messages(costs: list[Cost]) -> None:
    each = {cost.message_count / (cost.node_count - 1) for cost in costs}
    assert max(each) <= 14
    assert max(each) - min(each) <= 1


def test_the_coordinator_decides_and_writes_once_a_node(costs: list[Cost]) -> None:
    for cost in costs:
        assert cost.decide_count <= cost.node_count + 20
        assert cost.record_count <= cost.node_count + 20


def test_bytes_grow_with_the_nodes(costs: list[Cost]) -> None:
    small, _, large = costs
    nodes = large.node_count / small.node_count
    assert large.record_bytes <= small.record_bytes * nodes
    assert large.message_bytes <= small.message_bytes * nodes * 1.2


def test_the_drain_takes_no_longer(costs: list[Cost]) -> None:
    assert max(cost.exited_ms for cost in costs) <= 1.2 * min(cost.exited_ms for cost in costs)


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scale", "8", "16"]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split()[:3] == ["ranks", "nodes", "messages"]
    assert [row.split()[0] for row in rows] == ["8", "16"]
