"""``drainfsm supervise`` around real agents: killed, stopped, drained, and standing by."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from drainfsm.cli.stores import decisions_in
from drainfsm.core.events import (
    AttemptFinished,
    AttemptLost,
    CheckpointCommitted,
    CheckpointRestored,
    Exited,
    HealthyStepReached,
    ManifestPublished,
    NoticeReceived,
)
from drainfsm.policy.decisions import read_decisions
from drainfsm.policy.events import RestartDecided
from drainfsm.runtime.liveness import sign_of_life
from drainfsm.runtime.paths import read_run_info
from drainfsm.views.attempts import Ending
from drainfsm.views.history import read_journals
from drainfsm.views.report import report_jobs
from drainfsm_kit.marks import MARK
from drainfsm_kit.running import DRAINFSM, WAIT_S, RunningJob

STEPS = 400


@contextmanager
def supervised(
    job: RunningJob, *options: str, silence_s: float = 30.0
) -> Iterator[subprocess.Popen[bytes]]:
    """The supervisor of a job with one toy rank that saves now and then."""
    common = ("--job", job.job, "--state-dir", str(job.state_dir))
    run = ("run", *common, "--store", job.store_url, "--nats", job.nats, "--heartbeat", "0.2")
    allowances = ("--quiesce-ms", "1500", "--commit-ms", "1000", "--exit-margin-ms", "2000")
    toy = job.toy("--every", "5", "--steps", str(STEPS))
    watch = ("supervise", *common, "--silence", str(silence_s), "--backoff", "0.05", *options)
    command = (*DRAINFSM, *watch, "--", *DRAINFSM, *run, *allowances, "--grace", "20", "--", *toy)
    process = subprocess.Popen(command, env={**os.environ, MARK: job.job}, cwd=job.directory)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in job.processes():
            os.kill(pid, signal.SIGKILL)


def _wait_for(job: RunningJob, kind: type, *, epoch: int) -> None:
    job.wait_anyway(lambda: job.find(kind, epoch) or None, what=f"{kind.__name__} of {epoch}")


def _agent_pid(job: RunningJob, *, epoch: int) -> int:
    info = read_run_info(job.state_dir, job.job)
    assert info is not None
    assert info.epoch == epoch
    return info.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_attempt_is_followed_by_one_that_resumes(
    job: RunningJob, number: signal.Signals
) -> None:
    """SIGSTOP is a machine that hangs: only its silence tells."""
    silence_s = 3.0 if number == signal.SIGSTOP else 300.0
    with supervised(job, silence_s=silence_s) as supervisor:
        _wait_for(job, CheckpointCommitted, epoch=1)
        _wait_for(job, HealthyStepReached, epoch=1)
        os.kill(_agent_pid(job, epoch=1), number)
        _wait_for(job, HealthyStepReached, epoch=2)
        committed = job.find(CheckpointCommitted)[-1]
        (lost,) = job.find(AttemptLost, epoch=2)
        assert lost.epoch == 1
        assert lost.last_seen_unix_ms is not None
        assert lost.last_seen_unix_ms >= job.records(1)[-1].at_unix_ms
        (restored,) = job.find(CheckpointRestored, epoch=2)
        assert restored.generation_id == committed.generation_id
        assert supervisor.wait(WAIT_S * 2) == 0
        assert [event.exit_code for event in job.find(AttemptFinished, epoch=2)] == [0]
        assert max(job.steps(0, epoch=2)) == STEPS - 1
        job.wait_until_gone()
        _check_report(job)
        _check_decisions(job)


def _check_decisions(job: RunningJob) -> None:
    lost, finished = read_decisions(decisions_in(job.state_dir, job=job.job))
    assert isinstance(lost, RestartDecided)
    assert isinstance(finished, RestartDecided)
    assert (lost.attempt.epoch, lost.attempt.ended, lost.attempt.progressed) == (1, "lost", True)
    assert lost.action == "restart"
    assert (finished.attempt.epoch, finished.action) == (2, "end")
    told = subprocess.run(
        (*DRAINFSM, "explain", "--job", job.job, "--state-dir", str(job.state_dir)),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "After attempt 1: the next attempt starts after 0.1 s, loss 1 in a row" in told


def _check_report(job: RunningJob) -> None:
    made = report_jobs(read_journals(job.state_dir, job_id=job.job).logs)
    first, second = made.jobs[0].attempts
    assert (first.ending, second.ending) == (Ending.LOST, Ending.FINISHED)
    assert first.requeue_delay_ms is not None
    assert first.checkpoint_age_ms is not None
    assert first.checkpoint_age_ms_max == first.checkpoint_age_ms + first.requeue_delay_ms
    totals = made.totals
    assert (totals.missed_notice.count, totals.missed_notice.of) == (1, 1)
    assert (totals.restart_healthy.count, totals.restart_healthy.of) == (1, 1)
    assert totals.restore.count == 1
    assert totals.save_durable.count == len(job.find(CheckpointCommitted, 1)) + len(
        job.find(CheckpointCommitted, 2)
    )


def test_a_signal_drains_the_job_and_nothing_is_started_after_it(job: RunningJob) -> None:
    with supervised(job) as supervisor:
        _wait_for(job, HealthyStepReached, epoch=1)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(WAIT_S) == 75
        assert len(job.find(Exited)) == 1
        assert job.records(epoch=2) == []


def test_a_standby_takes_over_what_falls_silent(job: RunningJob) -> None:
    job.start(job.toy("--every", "5"), settings={"heartbeat_s": 0.2})
    job.wait_for(CheckpointCommitted)
    with supervised(job, "--standby", silence_s=4.0) as standby:
        seen = sign_of_life(job.state_dir, job=job.job)
        job.wait(
            lambda: sign_of_life(job.state_dir, job=job.job) != seen or None, what="a heartbeat"
        )
        job.wait_for(CheckpointCommitted, count=len(job.find(CheckpointCommitted)) + 10)
        assert standby.poll() is None
        assert job.records(epoch=2) == []
        job.agents[0].signal(signal.SIGKILL)
        _wait_for(job, HealthyStepReached, epoch=2)
        assert [event.epoch for event in job.find(AttemptLost, epoch=2)] == [1]
        assert standby.wait(WAIT_S * 2) == 0


def test_a_standby_ends_with_the_job(job: RunningJob) -> None:
    job.start(job.toy("--steps", "100"), settings={"heartbeat_s": 0.2})
    job.wait_for(HealthyStepReached)
    with supervised(job, "--standby") as standby:
        assert standby.wait(WAIT_S) == 0
        assert job.records(epoch=2) == []


def test_an_attempt_drains_itself_when_its_time_is_over(job: RunningJob) -> None:
    agent = job.start(job.toy(), settings={"job_timeout_s": 2.0})
    assert agent.wait() == 75
    (received,) = job.find(NoticeReceived)
    assert received.notice.cause == "job_timeout"
    assert received.notice.notice_class == "hard"
    assert "for 2 s, its configured limit" in received.notice.detail
    assert len(job.find(ManifestPublished)) == 1
    assert job.state().attempt.requeue is not None
    assert job.state().current.cause == "job_timeout"
