"""A real Slurm cluster for all tests here: ``make slurm-packages`` installs what it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drainfsm_kit.slurm_cluster import Cluster, SlurmJob, missing_programs, running_cluster

SCRIPTS = Path(__file__).parent
DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"
GRACE_S = "12"
"""GraceTime of the partitions that are preempted."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without Slurm there is nothing to test against; CI has it, and must not pass without."""
    if os.environ.get("CI") == "true" or not missing_programs():
        return
    ours = [item for item in items if item.get_closest_marker("slurm")]
    if ours:
        items[:] = [item for item in items if item not in ours]
        config.hook.pytest_deselected(items=ours)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = missing_programs()
    if missing and os.environ.get("CI") != "true":
        terminalreporter.write_line(
            f"tests marked slurm are left out: {', '.join(missing)} missing; "
            "`make slurm-packages` as root installs Slurm"
        )


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    with running_cluster(SCRIPTS, SLURM_TEST_GRACE=GRACE_S) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Idle at first, whatever the test before left."""
    shared_cluster.wait_idle()
    return shared_cluster


@pytest.fixture(scope="session")
def linuxproc_cluster() -> Iterator[Cluster]:
    """One that signals every process of a job, not only the batch script and the tasks."""
    settings = {
        "SLURM_TEST_PROCTRACK": "linuxproc",
        "SLURM_TEST_NODES": "2",
        "SLURM_TEST_CPUS": "8",
    }
    with running_cluster(SCRIPTS, **settings) as cluster:
        yield cluster


Submit = Callable[..., SlurmJob]


@pytest.fixture
def submit(cluster: Cluster) -> Submit:
    """``submit("one-node", …)``: a script of ``deploy/slurm``, looked after every second."""

    def submitted(name: str, *arguments: str, **options: Any) -> SlurmJob:
        options.setdefault("DRAINFSM_ADAPTER_SLURM_POLL_S", "1")
        return cluster.job(DEPLOY / f"{name}.sbatch", *arguments, **options)

    return submitted
