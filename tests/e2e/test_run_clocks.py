"""Clocks that are set, or wrong: `notify --in` is a duration, and what is off is on record."""

from __future__ import annotations

import pytest

from drainfsm.core import events as e
from drainfsm_kit.running import CLOCK_OFF_MS, ROOMY, RunningJob, free_port
from drainfsm_kit.toy_rank import TOY_PORT

IN_S = 90.0


def window_ms(job: RunningJob) -> int:
    received = job.find(e.NoticeReceived)[0]
    return received.effective_deadline_unix_ms - received.budget.now_unix_ms


@pytest.mark.parametrize("off_s", [-540, 540])
def test_a_wall_clock_that_is_corrected_after_the_start_moves_no_deadline(
    job: RunningJob, off_s: int
) -> None:
    off = job.directory / "off"
    off.write_text(str(off_s * 1_000))
    agent = job.start(job.toy(), allowances=ROOMY, variables={CLOCK_OFF_MS: str(off)})
    job.wait_for(e.HealthyStepReached)
    off.write_text("0")
    unknown = job.wait_for(e.SourceUnknown)
    assert unknown.source == "clock"
    job.notify(in_s=IN_S)
    assert agent.wait() == 75
    assert IN_S - 10 < window_ms(job) / 1_000 <= IN_S
    assert job.find(e.ManifestPublished) != []


def test_a_node_whose_clock_is_an_hour_off_states_the_same_deadline(pair: RunningJob) -> None:
    off = pair.directory / "off"
    off.write_text(str(3_600_000))
    port = str(free_port())
    for node in range(2):
        variables = {TOY_PORT: port, **({CLOCK_OFF_MS: str(off)} if node == 1 else {})}
        command = pair.toy(ranks=2)
        pair.start(command, node_rank=node, allowances=ROOMY, variables=variables)
    pair.wait_for(e.HealthyStepReached)
    assert pair.wait_for(e.SourceUnknown).node == 1
    pair.notify(in_s=IN_S, node_rank=1)
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    assert IN_S - 10 < window_ms(pair) / 1_000 <= IN_S + 1
    assert pair.find(e.ManifestPublished) != []
    assert "node 1: its clock is 3600" in pair.agents[0].output()
