"""``drainfsm run --source aws`` as a user types it, with the demo's training under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import drainfsm.demo
from drainfsm.core import events as e
from drainfsm.testing.metadata import AwsMetadataServer
from drainfsm_kit.running import RunningJob, free_port, running_job

TRAINING = Path(drainfsm.demo.__file__).parent / "training.py"
LEAD_MS = 90_000
STEPS_MORE = 4
RUN_S_MAX = 240


def run_command(job: RunningJob, losses: Path, *, steps: int) -> list[str]:
    return [
        *(sys.executable, "-m", "drainfsm", "run", "--job", job.job, "--source", "aws"),
        *("--store", str(job.store), "--state-dir", str(job.state_dir), "--nats", job.nats, "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
        *(str(TRAINING), "--steps", str(steps), "--losses", str(losses)),
    ]


def environment(server: AwsMetadataServer) -> dict[str, str]:
    poll = {"DRAINFSM_ADAPTER_AWS_POLL_S": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, server.variable: server.endpoint, **poll}


def steps_in(losses: Path) -> list[int]:
    lines = losses.read_text().splitlines() if losses.exists() else []
    return [json.loads(line)["step"] for line in lines]


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    return tmp_path / "losses.jsonl"


def test_from_the_notice_to_the_resumed_step(tmp_path: Path, losses: Path) -> None:
    with running_job(tmp_path) as job:
        with (
            AwsMetadataServer(clock_ahead_ms=7_300) as server,
            (tmp_path / "log").open("wb") as log,
        ):
            agent = subprocess.Popen(
                run_command(job, losses, steps=1_000_000),
                env=environment(server),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                job.wait_anyway(lambda: len(steps_in(losses)) > 3 or None, what="fourth step")
                goes_unix_ms = server.interrupt(in_ms=LEAD_MS)
                code = agent.wait(RUN_S_MAX)
            finally:
                agent.kill()
                agent.wait()
        assert code == 75, (tmp_path / "log").read_text()
        received = job.find(e.NoticeReceived)[0]
        published = job.find(e.ManifestPublished)[0]
        assert received.notice.identity.startswith("aws/i-0123456789abcdef0/spot/")
        assert abs(received.deadline_unix_ms - goes_unix_ms) <= received.notice.clock_skew_ms
        assert (published.world_size, published.step) == (2, steps_in(losses)[-1])
        assert job.find(e.Exited)[0].remaining_ms > 0

        with AwsMetadataServer() as another:  # the replacement is another machine
            done = subprocess.run(
                run_command(job, losses, steps=published.step + 1 + STEPS_MORE),
                env=environment(another),
                capture_output=True,
                text=True,
                timeout=RUN_S_MAX,
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        restored = job.find(e.CheckpointRestored, epoch=2)[0]
        assert restored.manifest_digest == published.manifest_digest
        assert job.find(e.HealthyStepReached, epoch=2)[0].step == published.step + 1
        assert steps_in(losses) == list(range(published.step + 1 + STEPS_MORE)), (
            "none lost or twice"
        )
