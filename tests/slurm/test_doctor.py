"""``doctor`` in a job of a real cluster: what its limits leave for a save, and what mends it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from drainfsm_kit.slurm_cluster import Cluster

pytestmark = pytest.mark.slurm

GRACE_S = 12
"""GraceTime of the cluster's partition `low`; the conftest starts it so."""


def doctor(cluster: Cluster, tmp_path: Path, *options: str, partition: str) -> list[dict[str, Any]]:
    """What it finds of Slurm, inside a job."""
    said = tmp_path / "said.json"
    said.unlink(missing_ok=True)
    command = (sys.executable, "-m", "drainfsm", "doctor", "--job", "j", "--source", "slurm",
               "--bytes", "100MB", "--state-dir", str(tmp_path / "state"), "--json")  # fmt: skip
    wrapped = " ".join((*command, *options, ">", str(said)))
    job_id = cluster.run(
        "sbatch", "--parsable", "-p", partition, "-o", str(tmp_path / "out"), "--wrap", wrapped
    ).strip()
    ends = ("COMPLETED", "FAILED")
    cluster.wait(lambda: cluster.field(job_id, "JobState") in ends or None, what="end of doctor")
    found: list[dict[str, Any]] = json.loads(said.read_text())["findings"]
    return [one for one in found if one["check"].startswith("slurm")]


def bad(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in found if one["severity"] in ("error", "warning")}


def test_the_limits_of_a_real_cluster_and_what_mends_them(cluster: Cluster, tmp_path: Path) -> None:
    found = bad(doctor(cluster, tmp_path, partition="low"))
    assert set(found) == {"slurm window", "slurm KillWait"}
    window, wait = found["slurm window"], found["slurm KillWait"]
    assert window["severity"] == "error"
    assert f"GraceTime is {GRACE_S} s: a preemption leaves {GRACE_S}.0 s" in window["seen"]
    assert wait["severity"] == "warning"
    assert "KillWait is 5 s" in wait["seen"]
    mended = re.fullmatch(r"scontrol update PartitionName=… (GraceTime=\d+)", window["fix"])
    assert mended is not None
    cluster.run("scontrol", "update", "PartitionName=low", mended[1])
    try:
        assert set(bad(doctor(cluster, tmp_path, partition="low"))) == {"slurm KillWait"}
    finally:
        cluster.run("scontrol", "update", "PartitionName=low", f"GraceTime={GRACE_S}")


def test_a_partition_that_is_not_preempted_and_a_save_that_is_quick(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert set(bad(doctor(cluster, tmp_path, partition="main"))) == {"slurm KillWait"}
    quick = (
        "--quiesce-ms 500 --commit-ms 200 --exit-margin-ms 500 --clock-skew-ms 0 --barrier-ms 100"
    )
    fast = (*quick.split(), "--store-bytes-per-s", "1000000000")
    found = doctor(cluster, tmp_path, *fast, partition="low")
    assert bad(found) == {}
    assert [one["seen"] for one in found] == ["scontrol answers"]
