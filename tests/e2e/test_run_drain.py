"""``drainfsm run`` with toy ranks: drains that save, skip, resume, and end by themselves."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import Phase
from drainfsm_kit.running import QUICK, ROOMY, RunningJob

TOO_SHORT_S = 20.0
"""For a save with these allowances."""


@pytest.fixture
def job(job: RunningJob) -> RunningJob:
    job.allowances, job.grace_s = ROOMY, 120.0
    return job


@pytest.fixture
def pair(pair: RunningJob) -> RunningJob:
    pair.allowances, pair.grace_s = ROOMY, 120.0
    return pair


def test_one_rank_saves_leaves_and_comes_back_at_the_next_step(job: RunningJob) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    assert agent.wait() == 75
    published = job.find(e.ManifestPublished)[0]
    assert job.steps(0)[-1] == published.step
    assert job.state().phase is Phase.EXITED

    again = job.start(job.toy("--steps", str(published.step + 5)))
    assert again.wait() == 0
    restored = job.find(e.CheckpointRestored, epoch=2)[0]
    assert restored.generation_id == published.generation_id
    assert job.steps(0, epoch=2) == list(range(published.step + 1, published.step + 5))
    assert job.find(e.HealthyStepReached, epoch=2)[0].step == published.step + 1
    assert job.find(e.AttemptFinished, epoch=2)[0].exit_code == 0
    assert job.state(2).attempt.requeue is not None


def test_two_nodes_stop_at_one_step_whichever_node_hears(pair: RunningJob) -> None:
    pair.start_toys()
    pair.wait_for(e.HealthyStepReached)
    pair.agents[1].signal(signal.SIGUSR1)
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    published = pair.find(e.ManifestPublished)[0]
    assert published.world_size == 4
    assert [pair.steps(rank)[-1] for rank in range(4)] == [published.step] * 4
    exited = pair.find(e.Exited)[0]
    assert [(node.node, node.exit_code, node.killed_ranks) for node in exited.nodes] == [
        (0, 0, ()),
        (1, 0, ()),
    ]
    assert exited.remaining_ms > 0


def test_a_window_too_short_for_a_save_resumes_from_the_last_periodic_one(
    job: RunningJob,
) -> None:
    settings = CheckpointSettings(every_steps=10)
    agent = job.start(job.toy("--every", "10"), grace_s=TOO_SHORT_S, checkpoint=settings)
    committed = job.wait_for(e.CheckpointCommitted, count=2)
    agent.signal()
    assert agent.wait() == 75
    skipped = job.find(e.SaveSkipped)[0]
    assert not skipped.budget.fits
    assert job.find(e.SaveStarted) == []
    requeue = job.find(e.RequeueRecorded)[0].record
    assert requeue.step is not None
    assert requeue.step >= committed.step
    assert job.find(e.Exited)[0].nodes[0].killed_ranks == ()


def test_ranks_that_skip_leave_together(pair: RunningJob) -> None:
    """No rank may be left waiting for one that has gone."""
    pair.start_toys(grace_s=TOO_SHORT_S)
    pair.wait_for(e.HealthyStepReached)
    pair.agents[0].signal()
    assert [agent.wait() for agent in pair.agents] == [75, 75]
    assert pair.find(e.SaveSkipped) != []
    assert len({pair.steps(rank)[-1] for rank in range(4)}) == 1
    assert [node.killed_ranks for node in pair.find(e.Exited)[0].nodes] == [(), ()]


def test_a_job_that_ends_by_itself_gives_its_own_exit_code(job: RunningJob) -> None:
    agent = job.start(job.toy("--steps", "3", "--exit-code", "7"))
    assert agent.wait() == 7
    assert job.find(e.AttemptFinished)[0].exit_code == 7
    requeue = job.state().attempt.requeue
    assert requeue is not None
    assert requeue.cause == "failed"


def test_exit_codes_survive_a_launcher_that_flattens_them(job: RunningJob) -> None:
    agent = job.start(job.toy("--die", "1@5@85", ranks=2), allowances=QUICK)
    # Rank 0 goes on for ever: this launcher waits for it, as torchrun would not.
    job.wait(lambda: job.steps(0)[20:] or None, what="twenty steps of rank 0")
    job.wait(lambda: job.steps(1)[4:] or None, what="the last steps of rank 1")
    agent.signal()
    agent.wait()
    assert job.find(e.Exited)[0].nodes[0].exit_code == 85


def test_a_job_that_never_attaches_is_killed_in_time(job: RunningJob) -> None:
    agent = job.start(("sleep", "1000"), grace_s=20.0, allowances=QUICK)
    job.wait(lambda: job.events() or None, what="start of the attempt")
    agent.signal()
    assert agent.wait() == 75
    assert job.find(e.SaveSkipped)[0].reason == "no process called drainfsm.attach()"
    assert job.find(e.Exited)[0].remaining_ms > 0


def test_steps_that_are_longer_than_the_allowance_are_saved_where_the_window_has_room(
    job: RunningJob,
) -> None:
    allowances = replace(ROOMY, quiesce_ms=500)
    agent = job.start(job.toy("--step-s", "3", ranks=2), allowances=allowances)
    job.wait(lambda: job.steps(0)[1:] or None, what="two steps")
    agent.signal()
    assert agent.wait() == 75
    assert job.find(e.ManifestPublished)[0].step == job.steps(0)[-1] == job.steps(1)[-1]


def test_a_window_that_is_too_short_for_a_jobs_steps_is_said_before_any_notice(
    job: RunningJob,
) -> None:
    agent = job.start(job.toy("--step-s", "4"), grace_s=25.0)
    job.wait(lambda: "would save nothing" in agent.output() or None, what="a warning")
    assert "(steps take up to 4" in agent.output()
    assert job.find(e.NoticeReceived) == []
