"""``drainfsm run`` where something is broken: every drain still ends, in time, and says why."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.codec import decode_lines
from drainfsm.core.fold import Fold
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import Phase
from drainfsm_kit.running import QUICK, ROOMY, RunningJob, running_job

SIGKILLED = -signal.SIGKILL


@pytest.fixture
def job(job: RunningJob) -> RunningJob:
    job.allowances, job.grace_s = ROOMY, 120.0
    return job


@pytest.fixture
def pair(pair: RunningJob) -> RunningJob:
    pair.allowances, pair.grace_s = ROOMY, 120.0
    return pair


def test_an_unreachable_server_is_told_and_the_drain_goes_on(job: RunningJob) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    assert agent.wait() == 75
    assert job.find(e.ManifestPublished) != []
    assert "nats://127.0.0.1:9" in agent.output()
    assert "is in the journal" in agent.output()


def test_a_server_that_cannot_be_started_is_told_and_the_drain_goes_on(tmp_path: Path) -> None:
    with running_job(tmp_path, nats="") as job:
        blocked = job.state_dir / job.job / "nats"
        blocked.parent.mkdir(parents=True)
        blocked.write_text("in the way")
        agent = job.start(job.toy(), grace_s=120, allowances=ROOMY)
        job.wait_for(e.HealthyStepReached)
        agent.signal()
        assert agent.wait() == 75
        assert job.find(e.ManifestPublished) != []
        assert "no NATS server" in agent.output()


def test_the_second_agent_with_a_node_rank_is_refused(pair: RunningJob) -> None:
    pair.start_toys()
    pair.wait_for(e.HealthyStepReached)
    for node_rank in range(2):
        intruder = pair.start(("true",), node_rank=node_rank, settings={"attach_s": 2.0})
        assert intruder.wait() == 1
        assert f"node rank {node_rank}" in intruder.output()
    assert len(pair.find(e.AttemptStarted, epoch=2)) == 0, "the intruder fenced the job"
    pair.agents[0].signal()
    assert [agent.wait() for agent in pair.agents[:2]] == [75, 75]
    assert pair.find(e.ManifestPublished) != []


def test_an_agent_with_another_token_is_refused(pair: RunningJob) -> None:
    pair.start_toys()
    pair.wait_for(e.HealthyStepReached)
    intruder = pair.start(("true",), node_rank=1, settings={"token": "wrong"})
    assert intruder.wait() == 1
    assert "wrong job token" in intruder.output()


def test_a_rank_that_never_attaches_is_named_and_the_save_skipped(job: RunningJob) -> None:
    agent = job.start(job.toy("--absent", "1", ranks=2), allowances=QUICK)
    job.wait(lambda: job.steps(0)[5:] or None, what="steps of rank 0")
    agent.signal()
    assert agent.wait() == 75
    timed_out = job.find(e.QuiesceTimedOut)[0]
    assert "not attached" in {rank.phase for rank in timed_out.missing}
    assert job.find(e.SaveSkipped) != []
    assert job.find(e.Exited)[0].remaining_ms > 0


def test_a_rank_that_hangs_is_named_skipped_and_killed(pair: RunningJob) -> None:
    pair.allowances = QUICK
    pair.start_toys("--hang", "2@15")
    pair.wait(lambda: pair.steps(0)[14:] or None, what="step 14")
    pair.agents[0].signal()
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    timed_out = pair.find(e.QuiesceTimedOut)[0]
    assert 2 in {rank.rank for rank in timed_out.missing}
    assert {rank.last_step for rank in timed_out.missing if rank.rank == 2} == {14}
    skipped = pair.find(e.SaveSkipped)[0]
    assert skipped.budget.remaining_ms > 60_000, "the skip came long before the deadline"
    killed = [rank for node in pair.find(e.Exited)[0].nodes for rank in node.killed_ranks]
    assert 2 in killed


def test_a_rank_that_dies_while_the_others_quiesce_is_named(pair: RunningJob) -> None:
    pair.start_toys("--hang", "2@15")
    pair.wait(lambda: pair.steps(0)[14:] or None, what="step 14")
    victim = pair.rank_pid(2)
    pair.agents[0].signal()
    pair.wait_for(e.StopStepAgreed)
    os.kill(victim, signal.SIGKILL)
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    timed_out = pair.find(e.QuiesceTimedOut)[0]
    assert [(rank.rank, rank.phase) for rank in timed_out.missing if rank.rank == 2] == [
        (2, "lost")
    ]
    assert "SIGKILL" in pair.find(e.SaveSkipped)[0].reason


def test_a_rank_that_dies_while_saving_ends_the_save(pair: RunningJob) -> None:
    pair.start_toys("--save-dies", "3")
    pair.wait_for(e.HealthyStepReached)
    pair.agents[1].signal()
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    abandoned = pair.find(e.SaveAbandoned)[0]
    assert "rank 3 ended with exit code 1" in abandoned.reason
    assert pair.find(e.ManifestPublished) == []
    assert pair.state().phase is Phase.EXITED


def test_a_save_that_fails_is_abandoned_with_its_reason(job: RunningJob) -> None:
    agent = job.start(job.toy("--save-fails", "No space left on device"))
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    assert agent.wait() == 75
    assert "No space left on device" in job.find(e.SaveAbandoned)[0].reason
    assert job.find(e.Exited)[0].nodes[0].killed_ranks == ()


def test_a_file_that_was_reported_and_is_not_there_is_never_published(job: RunningJob) -> None:
    agent = job.start(job.toy("--save-lies"))
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    assert agent.wait() == 75
    assert "is missing" in job.find(e.SaveAbandoned)[0].reason
    assert job.find(e.ManifestPublished) == []


def test_a_save_that_overruns_is_abandoned_and_its_rank_killed(job: RunningJob) -> None:
    agent = job.start(job.toy("--save-s", "1000"))
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    job.wait_for(e.BytesStaged)
    job.notify(in_s=9, native_id="earlier")
    assert agent.wait() == 75
    assert job.find(e.SaveAbandoned) != []
    exited = job.find(e.Exited)[0]
    assert exited.nodes[0].killed_ranks == (0,)
    assert exited.remaining_ms > 0


def test_two_signals_within_a_millisecond_are_one_notice(job: RunningJob) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    agent.signal()
    assert agent.wait() == 75
    assert len(job.find(e.NoticeReceived)) == 1
    assert len(job.find(e.SaveStarted)) == 1


@pytest.mark.parametrize("node_rank", [0, 1])
def test_kill_9_of_an_agent_leaves_no_process_and_loses_the_attempt(
    pair: RunningJob, node_rank: int
) -> None:
    pair.start_toys("--every", "5")
    pair.wait_for(e.CheckpointCommitted)
    pair.agents[node_rank].process.kill()
    assert pair.agents[1 - node_rank].wait() == 75
    assert pair.agents[node_rank].wait() == SIGKILLED
    pair.wait_until_gone()
    if node_rank == 1:
        assert pair.state().phase is Phase.LOST
    again = pair.find(e.CheckpointCommitted)[-1]
    pair.start_toys("--steps", str(again.step + 30))
    assert [agent.wait() for agent in pair.agents[2:]] == [0, 0]
    started = pair.find(e.AttemptStarted, epoch=2)[0]
    assert started.restore is not None
    assert started.restore.cause == "lost"
    lost = pair.find(e.AttemptLost, epoch=2)
    assert [event.epoch for event in lost] == ([1] if node_rank == 0 else [])
    assert pair.find(e.CheckpointRestored, epoch=2) != []


def test_a_silent_node_is_lost(pair: RunningJob) -> None:
    pair.start_toys(silence_s=2.0, heartbeat_s=0.3)
    pair.wait_for(e.HealthyStepReached)
    stopped = pair.agents[1]
    stopped.signal(signal.SIGSTOP)
    assert pair.agents[0].wait() == 75
    assert "has said nothing" in pair.find(e.AttemptLost)[0].reason
    stopped.signal(signal.SIGCONT)
    assert stopped.wait() == 75
    pair.wait_until_gone()


def test_an_attempt_that_was_taken_over_publishes_nothing(job: RunningJob) -> None:
    first = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    second = job.start(job.toy())
    job.wait_for(e.HealthyStepReached, epoch=2)
    first.signal()
    assert first.wait() == 76
    assert job.find(e.AttemptFenced)[0].by_epoch == 2
    assert job.find(e.ManifestPublished) == []
    second.signal()
    assert second.wait() == 75
    assert job.find(e.ManifestPublished, epoch=2) != []


def test_a_node_that_fails_ends_the_job_with_its_code_on_every_node(pair: RunningJob) -> None:
    """Rank 3 fails; the others fail for want of it. All agents tell the first failure."""
    pair.start_toys("--die", "3@10@85")
    assert [agent.wait() for agent in pair.agents] == [85, 85]
    assert pair.find(e.AttemptFinished)[0].exit_code == 85


def test_a_notice_before_the_coordinator_is_there_still_ends_the_agent(pair: RunningJob) -> None:
    agent = pair.start(pair.toy(), node_rank=1, grace_s=3.0, allowances=QUICK)
    pair.wait(lambda: "waiting for the coordinator" in agent.output() or None, what="waiting")
    agent.signal()
    assert agent.wait() == 75


def test_a_full_disk_under_the_journal_costs_no_save(job: RunningJob) -> None:
    """No file of the agent may grow beyond the limit: the journal takes no more records, and the
    store keeps them instead, and in the end all that did not reach the stream."""
    limit = 3_000
    agent = job.start(job.toy(), file_bytes_max=limit)
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    assert agent.wait() == 75
    assert "cannot write the journal" in agent.output()
    assert job.find(e.ManifestPublished) == []
    kept = [
        record
        for path in sorted((job.store / "log" / "000001").iterdir())
        for record in decode_lines(path.read_bytes())
    ]
    written = {record.id for record in job.records()}
    everything = written | {record.id for record in kept}
    assert len(written) < len(everything)
    whole = Fold(job_id=job.job, epoch=1)
    assert whole.read_all([*job.records(), *kept]) == len(everything)
    assert whole.state.phase is Phase.EXITED
    committed = whole.state.attempt.committed
    assert committed is not None
    assert committed.step == job.steps(0)[-1]
    job.wait_until_gone()
    again = job.start(job.toy("--steps", str(committed.step + 5)))
    assert again.wait() == 0
    assert job.find(e.CheckpointRestored, epoch=2)[0].step == committed.step


def test_a_full_disk_and_a_store_that_hangs_keep_the_deadline(job: RunningJob) -> None:
    agent = job.start(job.toy(), grace_s=6.0, allowances=QUICK, file_bytes_max=3_000)
    job.wait_for(e.HealthyStepReached)
    job.store.rename(job.directory / "away")
    agent.signal()
    assert agent.wait() == 75
    assert "nothing is decided until it can" in agent.output()
    job.wait_until_gone()


def test_a_store_that_hangs_delays_no_exit(job: RunningJob) -> None:
    """A named pipe in the way of the manifest: whoever opens it waits for ever."""
    agent = job.start(job.toy("--save-s", "1"))
    job.wait_for(e.HealthyStepReached)
    requeue = job.store / "requeue"
    requeue.mkdir()
    os.mkfifo(requeue / "000001.json")
    agent.signal()
    assert agent.wait() == 75
    assert job.find(e.ManifestPublished) != []
    assert job.find(e.RequeueRecorded)[0].error != ""
    assert job.find(e.Exited)[0].remaining_ms > 0


def test_saves_that_come_faster_than_the_store_takes_them_pile_up_nowhere(job: RunningJob) -> None:
    """A step takes nothing, and each is saved: the agent has a thread for one commit at a time."""
    settings = CheckpointSettings(every_steps=1)
    toy = job.toy("--every", "1", "--step-s", "0.001", "--steps", "400")
    agent = job.start(toy, checkpoint=settings)
    job.wait_for(e.HealthyStepReached)
    counts = [0]
    while agent.process.poll() is None:
        with contextlib.suppress(OSError):
            counts.append(len(os.listdir(f"/proc/{agent.process.pid}/task")))
        time.sleep(0.01)
    assert agent.wait() == 0
    assert max(counts) < 16
    assert job.find(e.CheckpointCommitted) != []
    reasons = [one.reason for one in job.find(e.CheckpointFailed)]
    assert not [reason for reason in reasons if "was committed before it" in reason]
