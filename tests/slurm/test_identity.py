"""Which run of which job an order is for, and what the job is called."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.notice import NoticeClass
from drainfsm_kit.slurm_cluster import Cluster, SlurmJob

pytestmark = pytest.mark.slurm

Submit = Callable[..., SlurmJob]


@pytest.mark.parametrize("script", ["one-node", "wait-loop", "several-nodes"])
def test_a_script_runs_as_its_header_says_without_a_name(script: str, submit: Submit) -> None:
    """Slurm calls the job ``one-node.sbatch`` then, and `--job` takes no dots."""
    job = submit(script, job_name="")
    job.wait_steps(3)
    assert job.seen.job == f"{script}-sbatch"
    job.cancel()


def test_a_name_that_looks_like_a_record_misleads_nobody(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node", job_name="x UserId=0 JobState=CANCELLED Restarts=9")
    job.wait_steps(5)
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    job.wait_steps(1, epoch=2)
    assert job.seen.state(1).current.cause == "unknown"
    assert f"slurm: job {job.job_id} is requeued" in job.output()


def test_the_last_task_of_an_array_brings_back_itself_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It has the number of the array, and an order for that number goes to every task."""
    script = Path(__file__).parents[2] / "deploy" / "slurm" / "array.sbatch"
    job = cluster.job(script, DRAINFSM_ADAPTER_SLURM_POLL_S="1", array="0-2")
    array = job.seen.job
    tasks = []
    for task in range(3):
        seen = type(job.seen)(job.directory)
        seen.job = f"{array}-{task}"
        tasks.append(seen)

    def ids() -> dict[str, str]:
        shown = cluster.run("squeue", "-h", "-r", "-o", "%K %A", "-n", array, "-t", "RUNNING")
        return dict(line.split() for line in shown.splitlines())

    def all_run() -> dict[str, str] | None:
        return found if len(found := ids()) == 3 else None

    numbers = cluster.wait(all_run, what="three running tasks")
    last = next(name for name, number in numbers.items() if number == job.job_id)
    drained = tasks[int(last)]
    drained.wait_anyway(
        lambda: drained.find(e.HealthyStepReached, 1) or None, what="a step of the last task"
    )
    cluster.run("scancel", "--batch", "--signal=USR1", f"{job.job_id}_{last}")
    drained.wait_anyway(lambda: drained.find(e.AttemptStarted, 2) or None, what="its next attempt")
    for name, number in numbers.items():
        restarts = cluster.field(number, "Restarts")
        assert (name, restarts) == (name, "1" if name == last else "0")
    cluster.run("scancel", job.job_id)


def test_a_job_that_is_cancelled_in_the_grace_of_its_preemption_stays_cancelled(
    cluster: Cluster, submit: Submit
) -> None:
    node = cluster.nodes[0]
    variables = {"GRACE": "20", "DRAINFSM_ADAPTER_SLURM_REQUEUE": "stay"}
    job = submit("one-node", partition="low", nodelist=node, exclusive="user", **variables)
    job.wait_steps(5)
    more = ("-p", "main", "--exclusive", "-w", node, "-o", "/dev/null")
    cluster.run("sbatch", *more, "--wrap", "sleep 1")
    job.seen.wait_anyway(
        lambda: job.seen.find(e.StopStepAgreed, 1) or None, what="the drain of the preemption"
    )
    cluster.run("scancel", job.job_id)
    state = job.wait_state("CANCELLED", "PREEMPTED", "PENDING", "RUNNING")
    assert (state, job.field("Restarts")) == ("CANCELLED", "0")


def _wait_until_saved(cluster: Cluster, job: SlurmJob) -> None:
    """A controller that is killed knows afterwards only what it had written down."""
    mark = f"saved-{job.job_id}"
    cluster.run("scontrol", "update", f"jobid={job.job_id}", f"comment={mark}")
    state = cluster.directory / "state" / "job_state"
    cluster.wait(lambda: mark.encode() in state.read_bytes() or None, what="a saved state")


def _hard_notice(job: SlurmJob) -> bool | None:
    """Not the limit of the job, which is a SOFT one from its start on."""
    classes = [one.notice.notice_class for one in job.seen.find(e.NoticeReceived, 1)]
    return NoticeClass.HARD in classes or None


def test_a_requeue_waits_for_a_controller_that_is_away(cluster: Cluster, submit: Submit) -> None:
    """slurmctld stands still while the job leaves, and is killed then; the grace is long enough."""
    job = submit("one-node", GRACE="60")
    job.wait_steps(5)
    _wait_until_saved(cluster, job)
    pid = cluster.daemon_pid("slurmctld")
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    job.seen.wait_anyway(lambda: _hard_notice(job), what="the signal")
    os.kill(pid, signal.SIGSTOP)
    try:
        job.seen.wait_anyway(
            lambda: job.seen.find(e.Exited, 1) or None, what="the end of the drain"
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        cluster.restart_daemons()
    job.wait_steps(1, epoch=2)
    assert job.field("Restarts") == "1"
    assert f"job {job.job_id} is requeued" in job.output()


def test_a_reservation_for_maintenance_is_a_soft_notice(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node", DRAINFSM_ADAPTER_SLURM_NODES_S="1", time="60")
    job.wait_steps(3)
    node = job.field("NodeList")
    order = f"reservationname=patch starttime=now+1800 duration=10 users=root nodes={node}"
    cluster.run("scontrol", "create", "reservation", *order.split(), "flags=maint,ignore_jobs")
    try:
        received = job.seen.wait_anyway(
            lambda: next(
                (
                    found
                    for found in job.seen.find(e.NoticeReceived, 1)
                    if found.notice.cause == "host_maintenance"
                ),
                None,
            ),
            what="the notice",
        )
    finally:
        cluster.run("scontrol", "delete", "reservationname=patch")
    assert received.notice.nodes == (node,)
    assert received.notice.revocable
    job.seen.wait_anyway(lambda: job.seen.find(e.NoticeWithdrawn, 1) or None, what="its withdrawal")
    job.cancel()
