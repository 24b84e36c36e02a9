"""What the restart policy decides, carried out on a job in the queue of a real cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from drainfsm.core.notice import Cause
from drainfsm.testing.stores import new_store
from drainfsm_kit.past import MINUTE_MS, leave
from drainfsm_kit.slurm_cluster import Cluster

pytestmark = pytest.mark.slurm

RULES = "[restart]\npause_s = 3600\npause_s_max = 36000\npreemptions_max = 4\njitter = 0\n"


def _start_unix_s(cluster: Cluster, job_id: str) -> int:
    return int(cluster.field(job_id, "StartTime"))


def test_a_job_that_waits_gets_its_time_is_held_and_is_let_go(
    cluster: Cluster, tmp_path: Path
) -> None:
    store, rules = new_store(tmp_path / "store"), tmp_path / "rules.toml"
    rules.write_text(RULES)
    began_unix_ms = time.time_ns() // 1_000_000 - 60 * MINUTE_MS
    for epoch in range(1, 5):
        leave(store, epoch=epoch, cause=Cause.PREEMPTION, commits=True, now_unix_ms=began_unix_ms)
    submitted = cluster.run("sbatch", "--parsable", "-p", "main", "--begin=now+60", "-o",
                            "/dev/null", "--wrap", "sleep 1")  # fmt: skip
    job_id = submitted.strip()

    def policy(*more: str) -> str:
        command = (sys.executable, "-m", "drainfsm", "policy", "restart", "--job", "j", "--store",
                   store.url, "--rules", str(rules), "--slurm", job_id, *more)  # fmt: skip
        done = subprocess.run(
            command, env=cluster.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stderr

    ended_unix_s = (began_unix_ms + 41 * MINUTE_MS) / 1_000  # of the fourth attempt
    assert "at the earliest" in policy()
    assert abs(_start_unix_s(cluster, job_id) - (ended_unix_s + 7_200)) < 120
    leave(store, epoch=5, cause=Cause.PREEMPTION, commits=True, now_unix_ms=began_unix_ms)
    assert "is held; `scontrol release" in policy()
    assert cluster.field(job_id, "Reason") in ("JobHeldUser", "JobHeldAdmin")  # root holds as admin
    assert "is held already" in policy()
    rules.write_text("")
    assert "is held by somebody" in policy()
    assert "it is released" in policy("--release")
    cluster.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    cluster.wait(lambda: cluster.field(job_id, "JobState") == "COMPLETED" or None, what="end")
    assert "nothing is waiting" in policy()
