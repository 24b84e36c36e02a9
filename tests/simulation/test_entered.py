"""What the simulator runs of the product: nothing leaves the list without being seen."""

from __future__ import annotations

from pathlib import Path

from drainfsm_kit.simulator.entered import functions
from drainfsm_kit.simulator.many import CHUNK, WATCHED_CHUNKS, run_many

ENTERED = Path(__file__).with_name("entered.txt")


def kept() -> set[str]:
    return set(ENTERED.read_text().splitlines())


def test_every_function_of_the_list_is_in_the_code() -> None:
    """Where one is gone or has another name, change the list."""
    assert sorted(kept() - functions()) == []


def test_every_function_that_was_entered_once_is_entered_still() -> None:
    """Where the simulator has stopped to run one, find out why."""
    entered: set[str] = set()
    for tally, failed in run_many(1, WATCHED_CHUNKS * CHUNK, jobs=2):
        entered |= tally.entered
        assert failed == {}
    assert sorted(kept() - entered) == []
