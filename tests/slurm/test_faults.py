"""A cluster that loses nodes, and one that signals more processes than others do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.records import Record
from drainfsm_kit.slurm_cluster import Cluster, SlurmJob

pytestmark = pytest.mark.slurm

Submit = Callable[..., SlurmJob]
DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"


def test_jobs_whose_node_is_lost_run_twice_and_only_the_new_copies_count(
    cluster: Cluster, submit: Submit
) -> None:
    """slurmd dies, the ranks do not: Slurm starts the jobs again elsewhere meanwhile.

    The old copy of ``blind`` cannot ask slurmctld any more; the one of ``seeing`` can.
    """
    lost = cluster.nodes[0]
    cut_off = cluster.directory / "cut-off"
    scontrol = cluster.directory / "scontrol-of-old-copy"
    scontrol.write_text(
        f'#!/bin/sh\n[ -e {cut_off} ] && [ -z "$SLURM_RESTART_COUNT" ] && exit 1\n'
        'exec scontrol "$@"\n'
    )
    scontrol.chmod(0o755)
    others = f"nodename={','.join(cluster.nodes[1:])}"
    every = ("--every", "10")
    variables = {"DRAINFSM_ADAPTER_SLURM_SCONTROL": str(scontrol)}
    cluster.run("scontrol", "update", others, "state=drain", "reason=both jobs on one node")
    blind = submit("one-node", toy=every, **variables)
    seeing = submit("one-node", toy=every)
    for job in (blind, seeing):
        job.wait_steps(20)
        assert job.field("NodeList") == lost
    cluster.run("scontrol", "update", others, "state=resume")
    cut_off.touch()
    os.kill(cluster.daemon_pid(f"slurmd.{lost}"), signal.SIGKILL)
    for job in (blind, seeing):
        job.wait_steps(15, epoch=2)
        assert (job.field("Restarts"), job.field("NodeList") != lost) == ("1", True)
        _wait_over(job)
        committed = _committed(job.seen.records(1))
        assert max(committed.values()) <= job.seen.records(2)[0].at_unix_ms
        (restored,) = job.seen.find(e.CheckpointRestored, 2)
        assert restored.step == max(committed)
        assert job.seen.steps(0, 2)[0] == restored.step + 1
    assert [fence.by_epoch for fence in blind.seen.find(e.AttemptFenced, 1)] == [2]
    assert not seeing.seen.find(e.AttemptFenced, 1)
    assert seeing.seen.state(1).current.cause == "requeue"
    assert "Slurm has requeued the job already: restart 1" in seeing.output()
    cluster.restart_daemons()


def _wait_over(job: SlurmJob) -> None:
    job.seen.wait_anyway(
        lambda: job.seen.state(1).phase.over or None, what="the end of the first attempt"
    )


def _committed(records: list[Record]) -> dict[int, int]:
    """When each step was committed, by the log."""
    return {
        event.step: record.at_unix_ms
        for record in records
        for event in record.events
        if isinstance(event, e.CheckpointCommitted | e.ManifestPublished)
    }


ORDERS = {
    "scancel {job}": ("one-node", "cancelled"),
    "scontrol requeue {job}": ("one-node", "requeue"),
    "scancel --batch --signal=TERM {job}": ("one-node", "unknown"),
    "scancel --full --signal=USR1 {job}": ("one-node", "unknown"),
    "scontrol requeue {job} ": ("several-nodes", "requeue"),
}


def test_where_every_process_is_signalled_launcher_and_ranks_leave_it_to_the_agent(
    linuxproc_cluster: Cluster,
) -> None:
    """``proctrack/linuxproc`` sends a job's SIGTERM to the children of the batch script, too."""
    cluster = linuxproc_cluster
    poll = {"DRAINFSM_ADAPTER_SLURM_POLL_S": "1"}
    jobs = {
        order: cluster.job(DEPLOY / f"{script}.sbatch", ranks=2, **poll)
        for order, (script, _) in ORDERS.items()
    }
    for job in jobs.values():
        job.wait_steps(5)
    for order, job in jobs.items():
        cluster.run(*order.format(job=job.job_id).split())
    for order, job in jobs.items():
        _wait_over(job)
        state = job.seen.state(1)
        assert (order, state.current.cause) == (order, ORDERS[order][1])
        assert state.attempt.committed is not None
        assert state.attempt.committed.step == job.seen.steps(1)[-1]
        if state.current.cause == "cancelled":
            job.wait_state("CANCELLED")
        else:
            job.wait_steps(1, epoch=2)
            assert job.seen.steps(0, 2)[0] == state.attempt.committed.step + 1
