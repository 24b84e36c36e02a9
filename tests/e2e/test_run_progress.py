"""A job whose save never fits: what was abandoned is evidence, and the row of attempts ends."""

from __future__ import annotations

from pathlib import Path

from drainfsm.core import events as e
from drainfsm_kit import plugin
from drainfsm_kit.running import RunningJob


def test_attempts_that_get_no_further_end_in_a_row(job: RunningJob, tmp_path: Path) -> None:
    site = plugin.install(tmp_path / "site")
    settings = {**plugin.settings(tmp_path), "attempts_max": 3}
    codes = []
    for epoch in (1, 2, 3):
        agent = job.start(
            job.toy("--save-s", "1000"), grace_s=12.0, variables=site, settings=settings
        )
        job.wait_for(e.HealthyStepReached, epoch=epoch)
        agent.signal()
        codes.append(agent.wait())
    assert codes == [75, 75, 77], agent.output()
    abandoned = job.find(e.SaveAbandoned)[0]
    saved_ms = abandoned.budget.now_unix_ms - job.find(e.SaveStarted)[0].budget.now_unix_ms
    (skipped,) = job.find(e.SaveSkipped, epoch=2)
    assert skipped.budget.durable is not None
    assert skipped.budget.durable.value_ms >= saved_ms, "what was abandoned had taken so long"
    assert "the job is held: 3 attempts in a row left with nothing committed" in agent.output()
    assert (tmp_path / "left-0").read_text().startswith("False"), "nobody starts it again"


def test_progress_ends_the_row(job: RunningJob) -> None:
    settings: dict[str, object] = {"attempts_max": 2}
    for epoch in (1, 2, 3, 4):
        agent = job.start(job.toy(), settings=settings)
        job.wait_for(e.HealthyStepReached, epoch=epoch)
        agent.signal()
        assert agent.wait() == 75, agent.output()
