"""Notices by socket, signal and source, repeated and moved, in every state that lasts a while."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.state import Phase
from drainfsm.errors import AgentUnreachableError, NoticeRejectedError
from drainfsm.runtime.agent.notify import withdraw_notice
from drainfsm_kit import plugin
from drainfsm_kit.running import DRAINFSM, ROOMY, WAIT_S, RunningJob
from drainfsm_kit.toy_rank import RESTARTS


@pytest.fixture
def job(job: RunningJob) -> RunningJob:
    job.allowances, job.grace_s = ROOMY, 120.0
    return job


@pytest.fixture
def pair(pair: RunningJob) -> RunningJob:
    pair.allowances, pair.grace_s = ROOMY, 120.0
    return pair


NOT_LONG = Allowances(
    quiesce_ms=6_000, commit_ms=10_000, exit_margin_ms=10_000, clock_skew_ms=0, barrier_ms=100
)
"""Every state is left soon, whatever keeps the drain in it, and not too soon for the test."""

LASTING = {
    Phase.NOTICED: ("--absent", "1"),
    Phase.QUIESCING: ("--hang", "1@15"),
    Phase.SAVING: ("--stage-s", "4"),
    Phase.STAGED: ("--save-s", "4"),
    Phase.PUBLISHED: ("--exit-s", "4"),
}
"""What makes a drain stay in the state for about as long as it takes to notify it thrice."""


@pytest.mark.parametrize("phase", LASTING)
def test_more_notices_open_no_second_drain_and_only_shorten_the_first(
    job: RunningJob, phase: Phase
) -> None:
    agent = job.start(job.toy(*LASTING[phase], ranks=2), allowances=NOT_LONG)
    job.wait(lambda: job.steps(0)[14:] or None, what="step 14")
    job.notify(in_s=180)
    job.wait(lambda: job.state().phase is phase or None, what=f"phase {phase}")
    job.notify(in_s=180)
    job.notify(in_s=360, native_id="later")
    job.notify(in_s=120, native_id="earlier")
    assert agent.wait() == 75
    notices = job.find(e.NoticeReceived)
    assert {notice.drain_id for notice in notices} == {f"{job.job}/1/1"}
    assert {notice.notice.native_id for notice in notices} == {"first", "later", "earlier"}
    deadlines = [notice.effective_deadline_unix_ms for notice in notices]
    assert all(after <= before for before, after in pairwise(deadlines))
    assert [event.native_id for event in job.find(e.DeadlineShortened)] == ["earlier"]
    assert len(job.find(e.SaveStarted)) == (0 if phase in (Phase.NOTICED, Phase.QUIESCING) else 1)
    assert job.state().phase is Phase.EXITED


def test_a_later_deadline_under_the_same_name_is_never_adopted(job: RunningJob) -> None:
    agent = job.start(job.toy("--save-s", "1"))
    job.wait_for(e.HealthyStepReached)
    job.notify(in_s=120)
    job.notify(in_s=240)
    job.notify(in_s=90)
    assert agent.wait() == 75
    deadlines = [notice.effective_deadline_unix_ms for notice in job.find(e.NoticeReceived)]
    assert all(after <= before for before, after in pairwise(deadlines))


def test_a_soft_notice_far_ahead_is_waited_for_and_can_be_taken_back(job: RunningJob) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    assert "scheduled" in job.notify(in_s=600, soft=True)
    assert "scheduled" in job.notify(in_s=600, soft=True)
    withdraw_notice(job.state_dir, job=job.job, source="notify", native_id="first")
    job.wait_for(e.DrainCancelled)
    step = job.steps(0)[-1]
    job.wait(lambda: job.steps(0)[-1] > step + 5 or None, what="more steps")
    job.notify(in_s=120, native_id="second")
    assert agent.wait() == 75
    assert job.state().current.drain_id == f"{job.job}/1/2"
    assert job.find(e.ManifestPublished) != []


def test_a_soft_notice_becomes_due(job: RunningJob) -> None:
    """It starts its drain the slack before the latest safe start: at once, as near as this."""
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    job.notify(in_s=65, soft=True)
    assert agent.wait() == 75
    assert job.find(e.ManifestPublished) != []


def test_a_hard_notice_cannot_be_taken_back(job: RunningJob) -> None:
    agent = job.start(job.toy("--save-s", "1"))
    job.wait_for(e.HealthyStepReached)
    job.notify(in_s=120)
    with pytest.raises(NoticeRejectedError, match="HARD"):
        withdraw_notice(job.state_dir, job=job.job, source="notify", native_id="first")
    assert agent.wait() == 75
    assert job.find(e.ManifestPublished) != []


@pytest.mark.parametrize("in_s", [-90_000, 40_000_000], ids=["past", "years-ahead"])
def test_a_deadline_that_cannot_be_meant_is_refused_and_changes_nothing(
    job: RunningJob, in_s: float
) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    with pytest.raises(NoticeRejectedError, match="notify/first"):
        job.notify(in_s=in_s)
    step = job.steps(0)[-1]
    job.wait(lambda: job.steps(0)[-1] > step + 60 or None, what="more steps")
    assert job.find(e.NoticeReceived) == []
    agent.signal()
    assert agent.wait() == 75


def test_a_notice_for_a_job_that_does_not_run(job: RunningJob) -> None:
    with pytest.raises(AgentUnreachableError, match="no agent of job"):
        job.notify(in_s=20)


def test_a_logout_that_takes_the_socket_along_hides_the_agent_from_nobody(
    job: RunningJob, tmp_path: Path
) -> None:
    """A service manager removes XDG_RUNTIME_DIR with a user's last session; ``nohup`` goes on."""
    login = tempfile.mkdtemp(prefix="d-", dir="/tmp")
    go = tmp_path / "go"
    dies, trains = " ".join(job.toy("--die", "0@20@3")), " ".join(job.toy())
    script = f"{dies}; while ! [ -e {go} ]; do sleep 0.1; done; {RESTARTS}=1 {trains}"
    agent = job.start(("bash", "-c", script), variables={"XDG_RUNTIME_DIR": login})
    job.wait_for(e.HealthyStepReached)
    shutil.rmtree(login)
    job.wait(lambda: "listens again" in agent.output() or None, what="another socket")
    go.touch()
    job.wait(lambda: "attached again" in agent.output() or None, what="the rank's second start")
    job.notify(in_s=120)
    assert agent.wait() == 75, agent.output()
    assert len(job.find(e.ManifestPublished)) == 1, agent.output()


def test_either_node_can_be_notified(pair: RunningJob) -> None:
    pair.start_toys()
    pair.wait_for(e.HealthyStepReached)
    assert "noticed" in pair.notify(in_s=120, node_rank=1)
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    assert pair.find(e.ManifestPublished) != []


def test_a_long_phase_is_known_and_the_save_skipped_at_once(job: RunningJob) -> None:
    agent = job.start(job.toy("--phase", "1@15@eval@600@600", ranks=2))
    job.wait(lambda: (job.steps(0)[16:] and job.steps(1)[14:]) or None, what="the phase")
    job.notify(in_s=120)
    skipped = job.wait_for(e.SaveSkipped)
    assert "rank 1 is in eval" in skipped.reason
    assert job.find(e.QuiesceTimedOut) == []
    assert agent.wait() == 75
    assert job.find(e.Exited)[0].nodes[0].killed_ranks != ()


@pytest.fixture
def adapter(tmp_path: Path) -> dict[str, str]:
    return plugin.install(tmp_path / "site")


@pytest.mark.parametrize("slow", [False, True], ids=["cordoned", "cordon-hangs"])
def test_a_source_is_heard_cordons_and_acts_last(
    job: RunningJob, tmp_path: Path, adapter: dict[str, str], slow: bool
) -> None:
    if slow:
        (tmp_path / "slow-cordon").touch()
    settings = {**plugin.settings(tmp_path), "cordon": "test"}
    agent = job.start(job.toy(), variables=adapter, settings=settings)
    started = job.wait_for(e.HealthyStepReached)
    assert started is not None
    deadline = job.records()[-1].at_unix_ms + 120_000
    (tmp_path / "new").write_text(str(deadline))
    (tmp_path / "new").rename(tmp_path / "notice-0")
    assert agent.wait() == 75
    notices = job.find(e.NoticeReceived)
    assert [(n.notice.source, n.deadline_unix_ms) for n in notices] == [("test", deadline)]
    cordoned = job.find(e.NodeCordoned)[0]
    assert cordoned.outcome == ("timed_out" if slow else "success")
    assert (tmp_path / "cordoned-0").exists() is not slow
    requeue, _timeout_ms, *left_for = (tmp_path / "left-0").read_text().split()
    assert (requeue, left_for) == ("True", ["test/t"])
    assert job.find(e.ManifestPublished) != []


def test_who_waits_for_a_notice_goes_on_once_the_agent_has_left(job: RunningJob) -> None:
    agent = job.start(job.toy("--save-s", "1", "--exit-s", "1"))
    job.wait_for(e.HealthyStepReached)
    where = ("--job", job.job, "--state-dir", str(job.state_dir))
    done = subprocess.run(
        [*DRAINFSM, "notify", *where, "--in", "110", "--wait"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert agent.process.poll() == 75, "what the platform ends after the hook has left by itself"
    assert "is on record" in done.stdout
