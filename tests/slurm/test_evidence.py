"""What happens to a job on a real cluster, and what the agent makes of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TypeVar

import pytest

from drainfsm.core import events as e
from drainfsm.core.notice import NoticeClass
from drainfsm_kit.slurm_cluster import Cluster, SlurmJob

pytestmark = pytest.mark.slurm

Submit = Callable[..., SlurmJob]
F = TypeVar("F", bound=e.Event)


def test_a_limit_that_is_raised_calls_the_scheduled_drain_off(
    cluster: Cluster, submit: Submit
) -> None:
    job = submit("one-node", time="60")
    before = job.seen.wait_anyway(lambda: _end(job, 1), what="the end of the job")
    assert before.notice.notice_class is NoticeClass.SOFT
    cluster.run("scontrol", "update", f"jobid={job.job_id}", "timelimit=90")
    after = job.seen.wait_anyway(lambda: _end(job, 2), what="the later end")
    assert (after.deadline_unix_ms, after.drain_id != before.drain_id) == (
        before.deadline_unix_ms + 30 * 60_000,
        True,
    )
    assert job.seen.find(e.DrainCancelled)
    job.wait_steps(len(job.seen.steps(0)) + 5)


def test_a_limit_that_is_lowered_brings_the_drain_forward(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node", time="60")
    job.wait_steps(5)
    cluster.run("scontrol", "update", f"jobid={job.job_id}", "EndTime=now+12")
    end_unix_ms = int(job.field("EndTime")) * 1_000
    exited = job.seen.wait_anyway(lambda: _last(job, e.Exited), what="the job's exit")
    assert exited.remaining_ms > 0
    state = job.seen.state(1)
    assert (state.current.cause, state.current.deadline_unix_ms) == (
        "time_limit_shortened",
        end_unix_ms,
    )
    assert job.seen.find(e.DrainDue)[0].reason == "latest safe start"
    assert state.attempt.committed is not None
    job.wait_steps(1, epoch=2)
    assert job.seen.steps(0, 2)[0] == state.attempt.committed.step + 1


def test_a_drained_node_is_left_for_another_one(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node", DRAINFSM_ADAPTER_SLURM_NODES_S="1", GRACE="8")
    job.wait_steps(5)
    node = job.field("NodeList")
    cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=bad memory")
    job.wait_steps(3, epoch=2)
    state = job.seen.state(1)
    notice = next(n.notice for n in job.seen.find(e.NoticeReceived) if n.notice.nodes)
    assert (notice.cause, notice.notice_class) == ("node_drain", NoticeClass.SOFT)
    assert (notice.nodes, notice.detail) == ((node,), f"{node}: bad memory")
    assert notice.deadline_unix_ms is None
    assert state.current.cause == "node_drain"
    assert job.field("NodeList") != node


def test_a_cordon_that_is_allowed_drains_the_node(cluster: Cluster, submit: Submit) -> None:
    job = submit("one-node", DRAINFSM_CORDON="slurm")
    job.wait_steps(5)
    node = job.field("NodeList")
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    cordon = job.seen.wait_anyway(lambda: _last(job, e.NodeCordoned), what="the cordon")
    assert (cordon.outcome, cordon.detail) == ("success", f"drained: {node}")
    shown = cluster.run("scontrol", "-o", "show", "node", node)
    assert "+DRAIN" in shown
    assert f"Reason=drainfsm: {job.seen.job} leaves" in shown


def test_a_cordon_that_is_not_allowed_is_recorded_as_failed(
    cluster: Cluster, submit: Submit
) -> None:
    humble = cluster.directory / "scontrol-as-nobody"
    humble.write_text(
        '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups scontrol "$@"\n'
    )
    humble.chmod(0o755)
    cluster.directory.chmod(0o755)
    variables = {"DRAINFSM_CORDON": "slurm", "DRAINFSM_ADAPTER_SLURM_SCONTROL": str(humble)}
    job = submit("one-node", **variables)
    job.wait_steps(5)
    node = job.field("NodeList")
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    cordon = job.seen.wait_anyway(lambda: _last(job, e.NodeCordoned), what="the cordon")
    assert cordon.outcome == "failed"
    assert "Invalid user id" in cordon.detail
    assert "DRAIN" not in cluster.run("scontrol", "-o", "show", "node", node)
    assert job.seen.wait_anyway(lambda: _last(job, e.Exited), what="exit").exit_code == 75
    job.wait_state("FAILED")
    assert "will not come back by itself" in job.output()


def test_without_scontrol_the_job_drains_on_signals_and_says_what_is_missing(
    cluster: Cluster, submit: Submit
) -> None:
    job = submit("one-node", DRAINFSM_ADAPTER_SLURM_SCONTROL="/missing/scontrol")
    unknown = job.seen.wait_anyway(lambda: _last(job, e.SourceUnknown), what="the message")
    assert "cannot run /missing/scontrol: No such file or directory" in unknown.detail
    assert "in a container, mount Slurm's commands" in unknown.detail
    job.wait_steps(5)
    cluster.run("scancel", "--batch", "--signal=TERM", job.job_id)
    job.wait_state("FAILED")
    state = job.seen.state(1)
    assert (state.current.cause, state.attempt.exit_code) == ("unknown", 75)
    assert state.attempt.committed is not None
    assert "will not come back by itself: cannot run /missing/scontrol" in job.output()


def test_where_requeue_is_off_the_job_submits_itself_again(
    cluster: Cluster, submit: Submit
) -> None:
    again = cluster.directory / "again"
    again.write_text("")
    job = submit(
        "one-node",
        no_requeue="",
        DRAINFSM_ADAPTER_SLURM_RESUBMIT=f'sh {again} "$SLURM_JOB_ID"',
    )
    again.write_text(
        f"sbatch --parsable --job-name={job.seen.job} --dependency=afterany:$1 --no-requeue "
        f"--output={job.output_file} --open-mode=append {shlex.join(job.command)}\n"
    )
    job.wait_steps(5)
    cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    job.wait_steps(3, epoch=2)
    state = job.seen.state(1)
    assert state.attempt.requeue is not None
    assert job.seen.steps(0, 2)[0] == state.attempt.requeue.resume_step
    (start,) = job.seen.find(e.AttemptStarted, 2)
    next_id = str(int(job.job_id) + 1)
    assert start.attempt_id.startswith(f"slurm-{next_id}.0-")
    assert f"submitted again: {next_id}" in job.output()


def test_every_task_of_an_array_is_a_job_of_its_own(cluster: Cluster, submit: Submit) -> None:
    job = submit("array", array="0-1")
    ids = cluster.wait(lambda: _running(cluster, job, 2), what="two running tasks")
    names = [f"{job.seen.job}-{task}" for task in (0, 1)]

    def started(epoch: int) -> dict[str, int] | None:
        steps = {}
        for name in names:
            job.seen.job = name
            formed = job.seen.find(e.HealthyStepReached, epoch)
            if not formed:
                return None
            steps[name] = formed[0].step
        return steps

    job.seen.wait_anyway(lambda: started(1), what="two jobs that train")
    for one in ids:
        cluster.run("scancel", "--batch", "--signal=USR1", one)
    resumed = cluster.wait(lambda: started(2), what="two jobs that train again")
    for name in names:
        job.seen.job = name
        record = job.seen.state(1).attempt.requeue
        assert record is not None
        assert record.resume_step == resumed[name] > 0


def test_torchrun_on_several_nodes_is_drained_and_resumes(cluster: Cluster, submit: Submit) -> None:
    rank = ("-m", "drainfsm_kit.toy_rank", "--step-s", "0.05", "--trace", "{trace}")
    job = submit("torchrun", *rank, RANKS_PER_NODE="2")
    job.wait_steps(5, rank=3)
    cluster.run("scancel", "--signal=USR1", job.job_id)
    job.wait_steps(3, epoch=2, rank=3)
    state = job.seen.state(1)
    assert (state.attempt.world_size, state.attempt.node_count) == (4, 2)
    assert state.attempt.requeue is not None
    assert job.seen.steps(3, 2)[0] == state.attempt.requeue.resume_step > 0


def _end(job: SlurmJob, count: int) -> e.NoticeReceived | None:
    found = [n for n in job.seen.find(e.NoticeReceived) if "/end" in n.notice.native_id]
    return found[count - 1] if len(found) >= count else None


def _last(job: SlurmJob, kind: type[F]) -> F | None:
    found = job.seen.find(kind)
    return found[-1] if found else None


def _running(cluster: Cluster, job: SlurmJob, count: int) -> list[str] | None:
    ids = cluster.run("squeue", "-h", "-t", "RUNNING", "-n", job.seen.job, "-o", "%A").split()
    return ids if len(ids) == count else None
