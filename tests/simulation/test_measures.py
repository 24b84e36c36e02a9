"""What ``drainfsm report`` says of simulated attempts is what became of them."""

from __future__ import annotations

import pytest

from drainfsm_kit.simulator.__main__ import main
from drainfsm_kit.simulator.told import Told, told_by

SEEDS = range(1, 201)


@pytest.fixture(scope="module")
def told() -> Told:
    return told_by(SEEDS)


def test_no_notice_is_made_up_and_few_are_lost_with_their_coordinator(told: Told) -> None:
    assert any(true for _, true in told.missed)
    assert [pair for pair in told.missed if pair == (False, True)] == []
    assert told.missed.count((True, False)) <= len(told.missed) * 0.03


def test_no_first_step_is_made_up_and_few_are_lost_with_their_coordinator(told: Told) -> None:
    assert any(not true for _, true in told.healthy)
    assert [pair for pair in told.healthy if pair == (True, False)] == []
    assert told.healthy.count((False, True)) <= len(told.healthy) * 0.05


def test_a_restore_takes_as_long_as_its_slowest_rank(told: Told) -> None:
    assert len(told.restore_ms) > 50
    assert [(one, true) for one, true in told.restore_ms if one != true] == []


def test_delays_and_ages_are_true_but_for_ends_that_nobody_could_record(told: Told) -> None:
    assert len(told.requeue_ms) > 100
    assert len(told.requeue_off) <= len(told.requeue_ms) * 0.1, told.requeue_off
    assert told.checkpoint_age_ms
    assert len(told.age_off) <= len(told.checkpoint_age_ms) * 0.35, told.age_off


def test_the_command_prints_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--measures", "--seeds", "2", "--first", "9"]) == 0
    assert "lost without notice" in capsys.readouterr().out
