"""What ``report`` says of simulated attempts, beside what became of them."""

from __future__ import annotations

from drainfsm_kit.simulator.told import told_by

SEEDS = range(1, 41)


def test_the_report_makes_nothing_up() -> None:
    """It may know less than the world, and never more."""
    told = told_by(SEEDS)
    assert min(len(told.missed), len(told.healthy), len(told.restore_ms)) > 10
    assert len(told.requeue_ms) > 10
    assert (told.notices_made_up, told.steps_made_up, told.restores_off) == (0, 0, 0)
    assert len(told.requeue_off) <= len(told.requeue_ms) / 10, told.requeue_off
    assert told.age_off == []
