"""Jobs on a real cluster that are told to leave, and come back where they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drainfsm.core import events as e
from drainfsm.testing.slurm_cluster import Cluster, SlurmJob

pytestmark = pytest.mark.slurm

Submit = Callable[..., SlurmJob]
SAVED_STEP_MISSING = -1


def resumes(job: SlurmJob, *, after: int = 1, rank: int = 0) -> int:
    """Wait until the next attempt trains. The step that was saved: it goes on at the next one."""
    job.wait_steps(3, epoch=after + 1, rank=rank)
    record = job.seen.state(after).requeue
    assert record is not None
    saved = SAVED_STEP_MISSING if record.step is None else record.step
    assert job.seen.steps(rank, after + 1)[0] == saved + 1
    return saved


def preempt(cluster: Cluster, node: str) -> None:
    more = ("-p", "main", "--exclusive", "-w", node, "-o", "/dev/null")
    cluster.run("sbatch", *more, "--wrap", "sleep 1")


def test_a_preempted_job_leaves_in_its_grace_and_resumes(cluster: Cluster, submit: Submit) -> None:
    node = cluster.nodes[0]
    job = submit("one-node", partition="low", nodelist=node, exclusive="user")
    job.wait_steps(5)
    preempt(cluster, node)
    saved = resumes(job)
    assert job.seen.steps(0, 1)[-1] == saved
    state = job.seen.state(1)
    assert (state.cause, state.has_hard_notice) == ("preemption", True)
    assert job.field("Restarts") == "1"
    assert f"slurm: job {job.job_id} is requeued" in job.output()
    for epoch in (1, 2):
        (start,) = job.seen.find(e.AttemptStarted, epoch)
        assert start.attempt_id.startswith(f"slurm-{job.job_id}.{epoch - 1}-")


def test_a_preempted_job_may_stay_until_slurm_requeues_it(cluster: Cluster, submit: Submit) -> None:
    node = cluster.nodes[0]
    options = {"partition": "low", "nodelist": node, "exclusive": "user"}
    job = submit("one-node", **options, DRAINFSM_ADAPTER_SLURM_REQUEUE="stay")
    job.wait_steps(5)
    preempt(cluster, node)
    resumes(job)
    assert "staying until the preemption" in job.output()
    assert "DUE TO PREEMPTION" in job.output()


def test_a_cancelled_job_saves_and_does_not_come_back(submit: Submit) -> None:
    job = submit("one-node")
    job.wait_steps(5)
    job.cancel()
    job.wait_state("CANCELLED")
    state = job.seen.state(1)
    assert state.cause == "cancelled"
    assert state.requeue is not None
    assert state.requeue.step == job.seen.steps(0)[-1]
    assert "the job was cancelled: not requeued" in job.output()
    assert job.field("Restarts") == "0"


def test_a_job_that_is_requeued_by_its_owner_resumes(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node")
    job.wait_steps(5)
    cluster.run("scontrol", "requeue", job.job_id)
    resumes(job)
    assert job.seen.state(1).cause == "requeue"
    assert "Slurm has requeued the job already: restart 1" in job.output()


def test_a_signal_to_the_batch_script_alone_reaches_the_agent_behind_bash(
    cluster: Cluster, submit: Submit
) -> None:
    job = submit("wait-loop")
    job.wait_steps(5)
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    resumes(job)
    assert job.seen.state(1).cause == "unknown"


def test_a_signal_to_everything_is_heard_once(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node", ranks=2)
    job.wait_steps(5)
    cluster.run("scancel", "--full", "--signal=USR1", job.job_id)
    resumes(job)
    assert job.seen.state(1).cause == "unknown"
    assert len(job.seen.find(e.SaveStarted)) == 1


def test_a_signal_to_the_steps_reaches_the_agents_of_all_nodes(
    cluster: Cluster, submit: Submit
) -> None:
    job = submit("several-nodes", ranks=2)
    job.wait_steps(5)
    cluster.run("scancel", "--signal=TERM", job.job_id)
    resumes(job, rank=3)
    assert job.seen.state(1).cause == "unknown"
    assert len(job.seen.find(e.SaveStarted)) == 1


def test_steps_that_are_signalled_twice_save_once(cluster: Cluster, submit: Submit) -> None:
    job = submit("several-nodes")
    job.wait_steps(5)
    cluster.run("scontrol", "requeue", job.job_id)
    resumes(job, rank=1)
    assert job.seen.state(1).cause == "requeue"
    assert len(job.seen.find(e.SaveStarted)) == 1
