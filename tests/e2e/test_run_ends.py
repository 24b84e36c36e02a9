"""How an attempt ends, is put on record, and is told, where a drain is only part of the story."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from drainfsm.core import events as e
from drainfsm.views.attempts import Ending
from drainfsm.views.history import by_attempt
from drainfsm.views.report import report_jobs
from drainfsm_kit import plugin
from drainfsm_kit.running import ROOMY, RunningJob


def test_a_deadline_that_had_passed_leaves_a_requeue_record_and_is_no_loss(
    job: RunningJob, tmp_path: Path
) -> None:
    site, settings = plugin.install(tmp_path / "site"), plugin.settings(tmp_path)
    agent = job.start(job.toy("--every", "5"), variables=site, settings=settings)
    job.wait_for(e.CheckpointCommitted)
    late_unix_ms = job.records()[-1].at_unix_ms - 60_000
    (tmp_path / "new").write_text(str(late_unix_ms))
    (tmp_path / "new").rename(tmp_path / "notice-0")
    assert agent.wait() == 75
    record = job.find(e.RequeueRecorded)[0]
    assert (record.error, record.record.cause) == ("", "maintenance")
    requeue, timeout_ms, left_for = (tmp_path / "left-0").read_text().split()
    assert (requeue, left_for) == ("True", "test/t")
    assert int(timeout_ms) > 0, "nothing is left, but whoever lives still tries"
    second = job.start(job.toy("--steps", "1"))
    assert second.wait() == 0
    assert job.find(e.AttemptLost, epoch=2) == []


def test_a_job_that_ends_by_itself_while_a_drain_is_scheduled_has_not_drained(
    job: RunningJob, tmp_path: Path
) -> None:
    """Under Slurm that is every job: its time limit is a SOFT notice from the first minute on."""
    site, settings = plugin.install(tmp_path / "site"), plugin.settings(tmp_path)
    ahead_unix_ms = time.time_ns() // 1_000_000 + 3_600_000
    (tmp_path / "notice-0").write_text(f"{ahead_unix_ms} soft limit")
    toy = job.toy("--die", "0@100@85")
    agent = job.start(toy, variables=site, settings=settings)
    assert agent.wait() == 85
    assert job.find(e.NoticeReceived) != []
    assert job.find(e.Exited)[0].exit_code == 85
    assert (tmp_path / "left-0").read_text().split()[0::2] == ["False"], "nothing was left for"
    assert "before the deadline" not in agent.output()
    assert "rank 0 ended with exit code 85" in agent.output()
    (found,) = report_jobs(by_attempt(job.records())).jobs
    (attempt,) = found.attempts
    assert attempt.ending is Ending.FAILED
    assert [drain.outcome for drain in attempt.drains] == ["ended"]


def test_the_rank_that_fails_is_named_and_how(pair: RunningJob) -> None:
    pair.start_toys()
    pair.wait_for(e.HealthyStepReached)
    os.kill(pair.rank_pid(2), signal.SIGKILL)
    codes = [agent.wait() for agent in pair.agents]
    assert 137 in codes, codes
    assert "rank 2 was ended by SIGKILL" in pair.agents[1].output()


def test_the_last_act_has_what_the_deadline_leaves(job: RunningJob, tmp_path: Path) -> None:
    site, settings = plugin.install(tmp_path / "site"), plugin.settings(tmp_path)
    agent = job.start(job.toy(), variables=site, settings=settings, allowances=ROOMY)
    job.wait_for(e.HealthyStepReached)
    deadline_unix_ms = job.records()[-1].at_unix_ms + 120_000
    (tmp_path / "new").write_text(str(deadline_unix_ms))
    (tmp_path / "new").rename(tmp_path / "notice-0")
    assert agent.wait() == 75
    left = (tmp_path / "left-0").read_text().split()
    assert int(left[1]) > 20_000


def test_a_pause_of_everything_is_no_silence(pair: RunningJob) -> None:
    """``scontrol suspend``, gang scheduling, a snapshot of the machine."""
    pair.allowances, pair.grace_s = ROOMY, 120.0
    pair.start_toys(heartbeat_s=0.5, silence_s=3.0)
    pair.wait_for(e.HealthyStepReached)
    everybody = pair.processes()
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(9)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    done = len(pair.steps(0))
    pair.wait(lambda: pair.steps(0)[done + 100 :] or None, what="a hundred steps more")
    pair.agents[0].signal()
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    assert pair.find(e.AttemptLost) == []
    assert pair.find(e.ManifestPublished) != []
