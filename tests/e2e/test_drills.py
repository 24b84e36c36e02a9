"""Scenarios with a real job that saves by itself; and how they are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.core.budget import Allowances
from drainfsm.drills import scenarios
from drainfsm.drills.criteria import CRITERIA
from drainfsm.drills.disk import DiskError, DrillDisk, HangingDisk, SlowDisk, SmallDisk
from drainfsm.drills.job import DrillJob, DrillSettings
from drainfsm.drills.run import NOBODY
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.store import CommitLog, open_store
from drainfsm.store.rehearsals import read_rehearsals
from drainfsm_kit.marks import pids_with
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

ODD = 'a "drill" of $HOME\'s'

DECISIONS = {"second-request": "saved", "withdrawn": "cancelled"}
"""Of those that are played here: each has a mechanism of its own."""


def drilled(tmp_path: Path, scenario: str, *more: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = (*DRAINFSM, "drill", scenario, "--dir", str(tmp_path / ODD), *QUICK, "--timeout",
               str(WAIT_S), "--grace", "20", *more, "--", sys.executable, str(script))  # fmt: skip
    others = {"DRAINFSM_STORE": str(tmp_path / "real"), "DRAINFSM_JOB": "llm"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **others},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (tmp_path / "real").exists(), "a real job's store was claimed"
    return done


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
        ("hanging-store", HangingDisk, "the save is "),  # skipped or abandoned
        ("slow-store", SlowDisk, "the save is skipped: remaining "),
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
        assert told_by_agent in (tmp_path / ODD / scenario / "node-1.log").read_text()
    assert told["note"] == wanted
    assert "drainfsm-drill" not in Path("/proc/mounts").read_text()
    kept = open_store(str(tmp_path / ODD / scenario / "store"))
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


@pytest.mark.parametrize(
    ("scenario", "number"), [("hanging-store", signal.SIGTERM), ("stuck-rank", signal.SIGHUP)]
)
def test_an_interrupted_drill_leaves_nothing_behind(
    tmp_path: Path, scenario: str, number: signal.Signals
) -> None:
    """In the middle of it: ranks wait for a disk that hangs, or are frozen."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    root = tmp_path / "drill"
    command = (*DRAINFSM, "drill", scenario, "--dir", str(root), "--", sys.executable, str(script))
    drill = subprocess.Popen(
        command,
        env={**os.environ, "DRILL_TEST": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    log = root / scenario / "node-1.log"
    give_up = time.monotonic() + WAIT_S
    while not (log.exists() and "hard notice drill" in log.read_text()):
        assert drill.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.01)
    drill.send_signal(number)
    drill.send_signal(number)
    drill.communicate(timeout=WAIT_S)
    assert drill.returncode == 130
    assert pids_with(f"DRILL_TEST={tmp_path}\0") == []
    assert "drainfsm-drill" not in Path("/proc/mounts").read_text()
    assert (root / scenario / "store" / "commits").is_dir()


def test_a_job_that_never_saves_fails_its_drill(tmp_path: Path) -> None:
    done = drilled(tmp_path, "maintenance", "--every-steps", "1000000", "--timeout", "8")
    assert done.returncode == 1
    assert "no CheckpointCommitted within 8 s" in done.stdout
