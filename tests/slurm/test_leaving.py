"""Jobs on a real cluster that are told to leave, and come back where they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drainfsm.core import events as e
from drainfsm_kit.slurm_cluster import Cluster, SlurmJob

pytestmark = pytest.mark.slurm

Submit = Callable[..., SlurmJob]
SAVED_STEP_MISSING = -1


def resumes(job: SlurmJob, *, after: int = 1, rank: int = 0) -> int:
    """Wait until the next attempt trains. The step that was saved: it goes on at the next one."""
    job.wait_steps(3, epoch=after + 1, rank=rank)
    record = job.seen.state(after).attempt.requeue
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
    assert (state.current.cause, state.current.has_hard_notice) == ("preemption", True)
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


ORDERS = {
    "requeue": ("one-node", "scontrol requeue {job}", "requeue"),
    "batch": ("wait-loop", "scancel --batch --signal=USR1 {job}", "unknown"),
    "full": ("one-node", "scancel --full --signal=USR1 {job}", "unknown"),
    "steps": ("several-nodes", "scancel --signal=TERM {job}", "unknown"),
    "steps, twice": ("several-nodes", "scontrol requeue {job}", "requeue"),
    "cancel": ("wait-loop", "scancel {job}", "cancelled"),
    "cancel steps": ("several-nodes", "scancel {job}", "cancelled"),
}
"""Script, order and cause. ``requeue`` and ``cancel`` send SIGTERM to the batch script and to the
steps, to these twice; the others only to what they name."""


def test_whatever_is_signalled_the_job_saves_once_and_comes_back_unless_cancelled(
    cluster: Cluster, submit: Submit
) -> None:
    jobs = {name: submit(script, ranks=2) for name, (script, _, _) in ORDERS.items()}
    for job in jobs.values():
        job.wait_steps(5)
    for name, job in jobs.items():
        cluster.run(*ORDERS[name][1].format(job=job.job_id).split())
    for name, job in jobs.items():
        rank = 3 if ORDERS[name][0] == "several-nodes" else 1
        if name.startswith("cancel"):
            job.wait_state("CANCELLED")
            assert "the job was cancelled: not requeued" in job.output()
            assert (job.field("Restarts"), job.seen.events(2)) == ("0", [])
        else:
            resumes(job, rank=rank)
        state = job.seen.state(1)
        assert (name, state.current.cause) == (name, ORDERS[name][2])
        assert state.attempt.committed is not None
        assert state.attempt.committed.step == job.seen.steps(rank)[-1]
        assert len(job.seen.find(e.SaveStarted)) == 1
    assert "Slurm has requeued the job already: restart 1" in jobs["requeue"].output()
