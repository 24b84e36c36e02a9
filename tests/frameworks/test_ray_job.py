"""deploy/ray/rayjob.yaml with ``ray job submit``: a notice, saved, left; the next one resumes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from drainfsm_kit.framework_contract import PATIENCE_S
from drainfsm_kit.marks import MARK, pids_with
from drainfsm_kit.running import free_port

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
FILE = Path(__file__).parents[2] / "deploy" / "ray" / "rayjob.yaml"
STEPS, STARTS = 400, 5
ENDINGS = ("succeeded", "failed", "stopped")
SCRIPT = f"""
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import drainfsm

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
session = drainfsm.attach()
checkpoint = session.checkpoint(model=model, optimizer=optimizer)
with open(sys.argv[1] + str(dist.get_rank()), "a", buffering=1) as lines:
    first = checkpoint.restore()
    for step in range(first, {STEPS}):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(json.dumps([step, loss.item()]), file=lines)
        time.sleep(0.5 if session.job_id and not first else 0)  # slow until it was drained
        if checkpoint.step_done(step):
            break
session.close()
"""


class Cluster:
    """Ray on this machine, to which jobs are submitted."""

    def __init__(self, directory: Path, short: str) -> None:
        self._bin = Path(sys.executable).parent
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DRAINFSM_")}
        self.environment = {
            **kept,
            MARK: short,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "RAY_AUTH_MODE": "disabled",  # else it depends on a file in the home directory
        }
        self._address = f"http://127.0.0.1:{free_port()}"
        self._directory, self._short = directory, short

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *arguments],
            cwd=self._directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self) -> None:
        """Ray gives its node 30 s to come up, and nothing sets another limit."""
        for left in reversed(range(STARTS)):
            port = self._address.rpartition(":")[2]
            done = self.ray(
                *("start", "--head", "--port", str(free_port()), "--num-cpus", "2"),
                *("--include-dashboard", "true", "--dashboard-port", port),
                *("--temp-dir", self._short, "--object-store-memory", str(100 << 20)),
                "--disable-usage-stats",
            )
            if done.returncode == 0:
                return
            self.end()
            is_late = "timed out during startup" in done.stdout + done.stderr
            if not (is_late and left):
                pytest.fail(done.stdout + done.stderr)

    def end(self) -> None:
        """`ray stop` would end other clusters, too."""
        for pid in pids_with(f"{MARK}={self._short}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def submit(self, entrypoint: str) -> str:
        """Its id."""
        environment = json.dumps({"env_vars": {"PATH": self.environment["PATH"]}})
        named = f"job-{time.monotonic_ns()}"
        done = self.ray(
            *("job", "submit", "--address", self._address, "--no-wait"),
            *("--submission-id", named, "--runtime-env-json", environment, "--"),
            *shlex.split(entrypoint),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return named

    def status(self, named: str) -> str:
        done = self.ray("job", "status", "--address", self._address, named)
        return (done.stdout + done.stderr).lower()

    def ended(self, named: str) -> str:
        """Ray's words, once it has."""
        for _ in _patiently():
            said = self.status(named)
            if any(word in said for word in ENDINGS):
                return said
        raise AssertionError(f"it never ended: {self.told(named)}")

    def told(self, named: str) -> str:
        return self.ray("job", "logs", "--address", self._address, named).stdout


def _patiently() -> Iterator[None]:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        yield
        time.sleep(0.5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    missing = [name for name in ("ray", "aiohttp_cors") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: tests/frameworks/run.py --only ray installs it")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # Ray's sockets must be short
        made = Cluster(tmp_path, short)
        try:
            made.start()
            yield made
        finally:
            made.end()


def losses(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_next_submission_goes_on_at_the_next_step_with_the_same_losses(
    cluster: Cluster, tmp_path: Path
) -> None:
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    entrypoint = document["spec"]["entrypoint"]
    (worker,) = document["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = worker["template"]["spec"]["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    here = {
        "/tmp/drainfsm": f"{tmp_path / 'state'}",
        "drainfsm ": f"{sys.executable} -m drainfsm ",
        "torchrun ": f"{sys.executable} -m torch.distributed.run ",
        "s3://my-checkpoints/train": f"{tmp_path / 'store'}",
        "--nproc-per-node 8": "--nproc-per-node 2",
        "train.py": f"{tmp_path / 'train.py'} {tmp_path / 'losses'}",
    }

    def local(text: str) -> str:
        for theirs, ours in here.items():
            text = text.replace(theirs, ours)
        return text

    (tmp_path / "store").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    first = cluster.submit(local(entrypoint))
    for _ in _patiently():
        if len(losses(tmp_path / "losses1")) > 20 or "failed" in cluster.status(first):
            break
    assert len(losses(tmp_path / "losses1")) > 20, cluster.told(first)
    subprocess.run([*hook[:-1], local(hook[-1])], env=cluster.environment, check=True)
    assert "failed" in cluster.ended(first), cluster.told(first)
    assert "is committed" in cluster.told(first)
    drained = len(losses(tmp_path / "losses0"))
    assert 20 < drained < STEPS

    second = cluster.submit(local(entrypoint))
    assert "succeeded" in cluster.ended(second), cluster.told(second)
    assert f"the job resumes after step {drained - 1} " in cluster.told(second)

    command = local("torchrun --standalone --nproc-per-node 2 train.py").replace("losses", "whole")
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    for rank in "01":
        assert losses(tmp_path / f"losses{rank}") == losses(tmp_path / f"whole{rank}")
