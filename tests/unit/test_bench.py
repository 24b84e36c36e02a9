"""The harness of the benchmarks: ratios inside a round, goals, gates, and the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import bench.__main__ as command
from bench import device
from bench.harness import Case, Size, Topic, TopicResult, at_least, at_most, measure


def _topic(*, gate: float) -> Topic:
    """The machine gets twice as slow in every round: only ratios inside a round are steady."""
    slower = {"peer": 8.0, "ours": 2.0}

    def case(name: str) -> Case:
        def run() -> float:
            slower[name] *= 2
            return slower[name]

        return run

    @contextmanager
    def opened(size: Size) -> Iterator[dict[str, Case]]:
        yield {name: case(name) for name in slower}

    return Topic(
        name="fake",
        title="Fake",
        unit="s",
        open=opened,
        ratios=(
            at_least("G0", "beside the peer", "peer", "ours", goal=5, gate=gate),
            at_most("G0", "beside the peer, the other way", "ours", "peer", goal=0.3),
        ),
    )


def _measured(*, gate: float) -> TopicResult:
    return measure(_topic(gate=gate), Size(rounds=3))


def test_a_ratio_is_formed_inside_a_round() -> None:
    ratio, other = _measured(gate=3).ratios
    assert (ratio.spread.low, ratio.spread.median, ratio.spread.high) == (4, 4, 4)
    assert other.spread.median == 0.25


def test_a_missed_goal_is_told_and_breaks_no_gate() -> None:
    ratio, other = _measured(gate=3).ratios
    assert (ratio.goal_held, ratio.gate_held) == (False, True)
    assert (other.goal_held, other.gate_held) == (True, None)


def test_a_ratio_beyond_its_gate_is_broken() -> None:
    assert _measured(gate=4.5).ratios[0].gate_held is False


@pytest.mark.parametrize(("gate", "code"), [(3.0, 0), (4.5, 1)])
def test_the_quick_run_fails_when_a_gate_is_broken(
    gate: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_topic", lambda name: _topic(gate=gate))
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "step"])
    assert command.main() == code
    assert ("gate broken: fake" in capsys.readouterr().out) is (code == 1)


def test_every_topic_can_be_loaded_and_names_each_case_once() -> None:
    for name in command.TOPICS:
        assert command._topic(name).name == name


def test_the_device_script_leaves_out_what_needs_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["bench.device", "--mib", "1", "--rounds", "1"])
    device.main()
    said = capsys.readouterr().out
    assert "no GPU: device parts left out" in said
    assert "| blocked: drainfsm |" in said
    assert "| restore: drainfsm |" in said
    assert "pinned" not in said
