"""What counts as the time of a step, and when it is said."""

from __future__ import annotations

import pytest

from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.rank import progress
from drainfsm.runtime.rank.progress import StepTimes
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now_ms = [0]
    monkeypatch.setattr(progress, "monotonic_ms", lambda: now_ms[0])
    return now_ms


def test_a_blocking_save_is_no_part_of_a_step(clock: list[int]) -> None:
    times = StepTimes(step=-1)
    for step in range(6):
        clock[0] += 100
        times.saw(step)
        with times.paused():
            clock[0] += 6_000
    assert times.longest_ms == 100


def test_a_step_that_is_seen_only_in_the_save_behind_it_ends_where_the_save_begins(
    clock: list[int],
) -> None:
    times = StepTimes(step=-1)
    clock[0] = 100
    times.saw(0)
    clock[0] += 300
    with times.paused(), times.paused():
        clock[0] += 200
        times.saw(1)
        clock[0] += 5_800
    assert times.longest_ms == 300
    clock[0] += 400
    times.saw(2)
    assert times.longest_ms == 400


def test_step_times_are_said_when_they_are_news(clock: list[int]) -> None:
    times = StepTimes(step=-1)
    said = []
    for step, took_ms in enumerate((20, 20, 20, 8_000, 8_100, 20, *[20] * 8)):
        clock[0] += took_ms
        times.saw(step)
        said.append(times.news_ms())
    assert [one for one in said if one is not None] == [8_000, 20]


def test_a_node_says_the_longest_of_its_ranks() -> None:
    said: list[n.FromNode] = []
    ranks = LocalRanks(node=0, node_count=1, report=said.append)

    def send(message: m.ToRank) -> None:
        pass

    for rank in range(2):
        attach = m.Attach(rank=rank, world_size=2, local_world_size=2, pid=1, incarnation="0")
        ranks.attach(attach, send)
    for rank, step_ms in ((0, 8_000), (1, 2_000), (1, 3_000), (0, 1_500)):
        ranks.on_message(rank, send, m.StepTime(step_ms=step_ms))
    times = [one.step_ms for one in said if isinstance(one, n.NodeStepTime)]
    assert times == [8_000, 3_000]
