"""Other ways to come back: by the site's RequeueExit, under submitit, with srun inside."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm_kit.running import RunningJob
from drainfsm_kit.slurm_cluster import PATH, QUICK, Cluster, SlurmJob, running_cluster

Submit = Callable[..., SlurmJob]

pytestmark = pytest.mark.slurm

SCRIPTS = Path(__file__).parent
DEPLOY = SCRIPTS.parents[1] / "deploy" / "slurm"
PAGE = SCRIPTS.parents[1] / "docs" / "slurm.md"


@pytest.fixture(scope="module")
def requeuing_cluster() -> Iterator[Cluster]:
    with running_cluster(SCRIPTS, SLURM_TEST_EXTRA="RequeueExit=75", SLURM_TEST_NODES="2") as made:
        yield made


def test_where_the_site_requeues_75_the_agent_need_not(requeuing_cluster: Cluster) -> None:
    job, cancelled = (
        requeuing_cluster.job(
            DEPLOY / "one-node.sbatch",
            DRAINFSM_ADAPTER_SLURM_POLL_S="1",
            DRAINFSM_ADAPTER_SLURM_REQUEUE="none",
        )
        for _ in range(2)
    )
    for one in (job, cancelled):
        one.wait_steps(5)
    requeuing_cluster.run("scancel", "--batch", "--signal=USR1", job.job_id)
    requeuing_cluster.run("scancel", cancelled.job_id)
    job.wait_steps(1, epoch=2)
    assert job.field("Restarts") == "1"
    assert job.seen.steps(0, 2)[0] == job.seen.steps(0, 1)[-1] + 1
    assert "not requeued: [adapters.slurm] requeue = none" in job.output()
    cancelled.wait_state("CANCELLED")
    assert (cancelled.field("Restarts"), cancelled.seen.events(2)) == ("0", [])
    job.cancel()


SUBMIT = """
import sys
import submitit

if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder=sys.argv[1])
    executor.update_parameters(timeout_min=30, name="submitit")
    job = executor.submit(Train(*sys.argv[2:]))
    print(job.result())
"""


def test_under_submitit_the_first_run_reports_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The result is that of the run that finishes the training, not of one that drained."""
    seen = RunningJob(tmp_path)
    seen.job = "llm"
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (recipe,) = [text for text in blocks if "class Train" in text]
    script = tmp_path / "submit.py"
    script.write_text(recipe.replace("/shared/llm", str(seen.store)) + SUBMIT)
    training = seen.toy("--step-s", "0.05", "--steps", "400")
    command = (sys.executable, str(script), str(tmp_path / "submitit"), *training)
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}",
        "DRAINFSM_STATE_DIR": str(seen.state_dir),
        "DRAINFSM_NATS": seen.nats,
        **QUICK,
    }
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(cluster.run, *command, timeout_s=280, variables=variables)
        cluster.wait(lambda: len(seen.steps(0, 1)) > 5 or None, what="steps of the first run")
        notify = ("drainfsm", "notify", "--job", "llm", "--in", "60")
        cluster.run(*notify, variables=variables)
        cluster.wait(lambda: seen.find(e.Exited, 1) or None, what="the end of the first run")
        assert not told.done()
        assert told.result().splitlines()[-1] == "0"
    assert [len(seen.find(e.ManifestPublished, 1)), seen.steps(0, 2)[-1]] == [1, 399]
    assert seen.steps(0, 2)[0] == seen.steps(0, 1)[-1] + 1


HOLD = """
import asyncio, signal
from drainfsm.adapter import Departure
from drainfsm.testing import context_for
from drainfsm_adapters.slurm import adapter

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as the agent does by then
held = Departure(requeue=False, held="no progress", timeout_ms=30_000)
print(asyncio.run(adapter(context_for()).left(held)), flush=True)
"""


def test_a_job_that_gets_no_further_waits_for_somebody(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "hold.sh"
    script.write_text(f"#!/bin/bash\nexec {sys.executable} -c '{HOLD}'\n")
    job_id = cluster.run("sbatch", "--parsable", "-o", str(tmp_path / "said"), str(script)).strip()
    cluster.wait(
        lambda: cluster.field(job_id, "Reason") == "job_requeued_in_held_state" or None,
        what="a job that is held",
    )
    assert f"job {job_id} is held (no progress)" in (tmp_path / "said").read_text()
    cluster.run("scancel", job_id)


def test_ranks_that_srun_starts_inside_the_agent_save_and_resume(
    submit: Submit, cluster: Cluster
) -> None:
    """They are slurmd's children, not the agent's, and find their numbers in Slurm's variables.
    A signal to all of the job ends neither; one to srun itself would end the step (docs)."""
    toy = ("python", "-m", "drainfsm_kit.toy_rank", "--trace", "{trace}", "--save-s", "2")
    job = submit("one-node", "srun", "--ntasks=2", *toy, ntasks="2")
    job.wait_steps(5, rank=1)
    cluster.run("scancel", "--full", "--signal=TERM", job.job_id)
    job.wait_steps(1, epoch=2, rank=1)
    (saved,) = job.seen.find(e.ManifestPublished, 1)
    assert [job.seen.steps(rank, 2)[0] for rank in (0, 1)] == [saved.step + 1] * 2
    assert job.seen.find(e.WorldFormed, 1)[0].world_size == 2
    job.cancel()


def test_the_example_of_the_readme_is_requeued_and_resumes(
    cluster: Cluster, tmp_path: Path
) -> None:
    """``examples/README.md``: its command, as a user gives it."""
    root = SCRIPTS.parents[1]
    readme = (root / "examples" / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`STORE=\$STORE/slurm (sbatch .*)` \|", readme)
    seen = RunningJob(tmp_path)
    seen.job = "slurm"
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}",
        "STORE": str(seen.store),
        "DRAINFSM_STATE_DIR": str(seen.state_dir),
        "DRAINFSM_NATS": seen.nats,
        "DRAINFSM_ADAPTER_SLURM_POLL_S": "1",
    }
    options = f"sbatch --parsable --chdir={root} --output={tmp_path}/said"
    job_id = cluster.run(*command.replace("sbatch", options, 1).split(), variables=variables)
    cluster.wait(lambda: seen.find(e.HealthyStepReached) or None, what="first steps")
    cluster.run("scancel", "--batch", "--signal=USR1", job_id.strip())
    (restored,) = cluster.wait(
        lambda: seen.find(e.CheckpointRestored, 2) or None, what="a second run that resumes"
    )
    assert restored.step == seen.find(e.ManifestPublished)[0].step
    cluster.run("scancel", job_id.strip())
