"""Scenarios with a real job that saves by itself; and how they are told."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from drainfsm.drills.criteria import CRITERIA
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.store import open_store
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

DECISIONS = {"second-request": "saved", "slow-store": "abandoned", "withdrawn": "cancelled"}
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


def test_a_job_that_never_saves_fails_its_drill(tmp_path: Path) -> None:
    done = drilled(tmp_path, "maintenance", "--every-steps", "1000000", "--timeout", "8")
    assert done.returncode == 1
    assert "no CheckpointCommitted within 8 s" in done.stdout
