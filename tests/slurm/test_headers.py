"""The scripts of ``deploy/slurm``, each called exactly as its first lines say."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm_kit.running import RunningJob
from drainfsm_kit.slurm_cluster import PATH, QUICK, Cluster

pytestmark = pytest.mark.slurm

SCRIPTS = sorted((Path(__file__).parents[2] / "deploy" / "slurm").glob("*.sbatch"))
HEADER = re.compile(r"^# .*:  (.*sbatch .*)$", re.MULTILINE)
TRAIN = """
from drainfsm_kit.toy_rank import main

raise SystemExit(main(["--step-s", "0.05"]))
"""
WORLD_SIZES = {"several-nodes": 2, "torchrun": 16}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_as_its_header_says(script: Path, cluster: Cluster, tmp_path: Path) -> None:
    (command,) = HEADER.findall(script.read_text())
    shutil.copy(script, tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    seen = RunningJob(tmp_path)
    variables = {
        **QUICK,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}",
        "HEAD": "127.0.0.1",  # the nodes of the cluster have no names of their own
        "STORE": str(seen.store),
        "DRAINFSM_STATE_DIR": str(seen.state_dir),
        "DRAINFSM_NATS": seen.nats,
    }
    said = cluster.run("sh", "-c", f"cd {tmp_path} && {command}", variables=variables)
    job_id = said.split()[-1]

    def output() -> str:
        return "\n".join(file.read_text() for file in tmp_path.glob("slurm-*.out"))

    def steps_of(name: str) -> list[e.HealthyStepReached]:
        seen.job = name
        return seen.find(e.HealthyStepReached, 1)

    tasks = range(4) if "--array=0-3" in command else None
    for name in ["train"] if tasks is None else [f"train-{task}" for task in tasks]:
        cluster.wait(lambda: steps_of(name) or None, what=f"a step of {name}; {output()}")  # noqa: B023
        state = seen.state(1)
        assert state.attempt.world_size == WORLD_SIZES.get(script.stem, 1)
    cluster.run("scancel", job_id)
