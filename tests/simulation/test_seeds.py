"""The real coordinator, agents and log keep the invariants in worlds that misbehave."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from drainfsm.core.codec import encode
from drainfsm_kit.simulator import report
from drainfsm_kit.simulator.__main__ import main
from drainfsm_kit.simulator.seeds import PHASES
from drainfsm_kit.simulator.simulation import Result, simulate_seed
from drainfsm_kit.simulator.tally import Tally

SEEDS = range(1, 601)
"""``make simulate`` runs more of them."""

UNIQUE = re.compile(rb"[0-9a-f]{32,64}")
"""Ids of records and attempts, and digests over them: made by chance that is not the seed's."""


@pytest.mark.timeout(0)  # minutes where the machine is busy
def test_whatever_goes_wrong_the_invariants_hold_and_everything_did_go_wrong() -> None:
    tally = Tally()
    for seed in SEEDS:
        result = simulate_seed(seed)
        assert result.problems == [], f"seed {seed}"
        tally.add(result.tally)
    assert {
        name: tally.outcomes[name] for name in report.OUTCOMES if not tally.outcomes[name]
    } == {}
    assert [name for name in report.fault_classes() if not tally.faults[name]] == []
    heard = {phase for _, phase in tally.notices}
    assert {phase.value for phase in PHASES} - heard == set()


def history_of(result: Result) -> list[bytes]:
    return [
        UNIQUE.sub(b"", encode(replace(record, id="")))
        for _, records in result.history
        for record in records
    ]


@pytest.mark.parametrize("seed", [9, 16, 20, 62, 82])
def test_the_same_seed_gives_the_same_history(seed: int) -> None:
    once, again = simulate_seed(seed), simulate_seed(seed)
    assert history_of(once) == history_of(again) != []
    assert once.tally.faults == again.tally.faults
    assert once.tally.counts == again.tally.counts


def test_the_command_runs_seeds_and_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--first", "7", "--jobs", "1"]) == 0
    assert "seeds 7 to 9 in" in capsys.readouterr().out
    assert main(["--seed", "9"]) == 0
    assert "attempt_started" in capsys.readouterr().out
