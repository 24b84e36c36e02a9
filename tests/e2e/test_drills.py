"""Scenarios with a real job that saves by itself; and how they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.core.budget import Allowances
from drainfsm.drills import scenarios
from drainfsm.drills.criteria import CRITERIA
from drainfsm.drills.disk import DiskError, DrillDisk, HangingDisk, SmallDisk
from drainfsm.drills.job import DrillJob, DrillSettings
from drainfsm.drills.run import NOBODY
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.store import CommitLog, open_store
from drainfsm.store.rehearsals import read_rehearsals
from drainfsm_kit.running import DRAINFSM, WAIT_S

JOB = """
import json, time
import drainfsm

weights = {"w": 0.0}

def save(directory, step):
    (directory / "weights.json").write_text(json.dumps(weights))

def load(directory, step):
    weights.update(json.loads((directory / "weights.json").read_text()))

session = drainfsm.attach()
checkpoint = session.own_checkpoint(save=save, load=load, saver="my-json")
for step in range(checkpoint.restore(), 1_000_000):
    time.sleep(0.02)
    if checkpoint.step_done(step):
        break
session.close()
"""
QUICK = ("--quiesce-ms", "2000", "--commit-ms", "1000", "--exit-margin-ms", "3000")

DECISIONS = {"second-request": "saved", "withdrawn": "cancelled"}
"""Of those that are played here: each has a mechanism of its own."""


def drilled(tmp_path: Path, scenario: str, *more: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = (*DRAINFSM, "drill", scenario, "--dir", str(tmp_path / "drill"), *QUICK, "--timeout",
               str(WAIT_S), "--grace", "20", *more, "--", sys.executable, str(script))  # fmt: skip
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("scenario", DECISIONS)
def test_a_scenario_strikes_and_passes(tmp_path: Path, scenario: str) -> None:
    pages = ("--html", str(tmp_path / "d.html"), "--junit", str(tmp_path / "d.xml"))
    store = ("--store", str(tmp_path / "store"), "--job", "llm")
    done = drilled(tmp_path, scenario, "--json", *pages, *store)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["passed"]
    assert told["struck"]
    assert told["decision"] == DECISIONS[scenario]
    assert list(told["criteria"]) == list(CRITERIA)
    assert told["timeline"][0]["kind"] == "attempt_started"
    suite = ET.parse(tmp_path / "d.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert SCENARIOS[scenario].title in (tmp_path / "d.html").read_text()
    (one,) = read_rehearsals(open_store(str(tmp_path / "store")), job_id="llm")
    assert (one.scenario, one.passed, one.decision) == (scenario, True, DECISIONS[scenario])
    assert one.took_ms == told["took_ms"]


@pytest.mark.parametrize(
    ("scenario", "kind", "told_by_agent"),
    [
        ("full-store", SmallDisk, "No space left on device"),
        ("slow-store", HangingDisk, "the save is "),  # skipped or abandoned
    ],
)
def test_the_store_is_on_a_file_system_that_fails(
    tmp_path: Path, scenario: str, kind: Callable[[Path], DrillDisk], told_by_agent: str
) -> None:
    """By the operating system, where this machine gives a drill one of its own."""
    done = drilled(tmp_path, scenario, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["decision"] in SCENARIOS[scenario].decisions
    (tmp_path / "try").mkdir()
    try:
        kind(tmp_path / "try").close()
    except DiskError as error:
        wanted = f"no file system of its own: {error}"
    else:
        wanted = ""
        assert told_by_agent in (tmp_path / "drill" / scenario / "node-1.log").read_text()
    assert told["note"] == wanted
    assert "drainfsm-drill" not in Path("/proc/mounts").read_text()
    kept = open_store(str(tmp_path / "drill" / scenario / "store"))
    assert list(CommitLog(kept, job_id=f"drill-{scenario}").commits())


def test_what_outlives_the_agent_breaks_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the job has left behind, under whatever parent."""
    monkeypatch.setattr(scenarios, "LINGERS_S", 0.1)
    settings = DrillSettings(
        command=("true",),
        grace_s=5,
        every_steps=1,
        allowances=Allowances(),
        nats_url=NOBODY,
        timeout_s=WAIT_S,
    )
    job = DrillJob(tmp_path / "some", settings)
    try:
        attempt = job.start()
        variables = {**os.environ, "DRILL_NODE": attempt.node, "DRILL_DIR": str(job.root)}
        other = subprocess.Popen(["sleep", "600"], env=variables)
        scenarios._ended(job, attempt)
        assert attempt.process.returncode == 0
        assert attempt.left() == [other.pid]
        assert attempt.gone_unix_ms is None
        other.kill()
        other.wait()
        scenarios._ended(job, attempt)
        assert attempt.gone_unix_ms is not None
    finally:
        job.close()


def test_a_job_that_never_saves_fails_its_drill(tmp_path: Path) -> None:
    done = drilled(tmp_path, "maintenance", "--every-steps", "1000000", "--timeout", "8")
    assert done.returncode == 1
    assert "no CheckpointCommitted within 8 s" in done.stdout
