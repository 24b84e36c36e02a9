"""``doctor --trial``: whom a signal to all processes of a job reaches, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from drainfsm_kit.marks import pids_with
from drainfsm_kit.running import DRAINFSM, WAIT_S

JOB = """
import multiprocessing, subprocess, sys, time
import drainfsm

def nothing(directory, step): ...

def work():
    time.sleep(600)

if sys.argv[1] == "fails":
    raise SystemExit("no data here: FileNotFoundError")
loader = multiprocessing.get_context("fork").Process(target=work, daemon=True)
if sys.argv[1] == "early":
    loader.start()
session = drainfsm.attach()
if sys.argv[1] == "tool":
    subprocess.Popen(["sleep", "600"])
if sys.argv[1] != "early":
    loader.start()
checkpoint = session.own_checkpoint(save=nothing, load=nothing, saver="none")
for step in range(checkpoint.restore(), 1_000_000):
    time.sleep(600 if sys.argv[1] == "stuck" and step == 2 else 0.02)
    if checkpoint.step_done(step):
        break
session.close()
"""


@pytest.mark.parametrize(
    ("case", "severity", "seen"),
    [
        ("right", "right", "stopped 1 of 1 ranks at one step"),
        ("early", "warning", "ended 1 of 1 that the ranks had started: python"),
        ("tool", "warning", "ended 1 of 2 that the ranks had started: sleep"),
        ("stuck", "error", "0 of 1 ranks stopped for a signal; not: rank 0"),
        ("fails", "error", "it ended before its first step: no data here: FileNotFoundError"),
    ],
)
def test_a_trial_tells_whom_a_signal_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, severity: str, seen: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TRIAL_TEST", str(tmp_path))
    script = tmp_path / "job.py"
    script.write_text(JOB)
    own = ("--job", "t", "--quiesce-ms", "1500", "--trial", str(WAIT_S), "--json")
    done = subprocess.run(
        (*DRAINFSM, "doctor", *own, "--", sys.executable, str(script), case),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "signal"]
    assert [one["severity"] for one in found] == [severity], found
    assert seen in found[0]["seen"]
    assert list(tmp_path.glob("drainfsm-trial-*")) == []
    assert pids_with(f"\0TRIAL_TEST={tmp_path}\0") == []


def test_a_trial_needs_a_command() -> None:
    done = subprocess.run(
        (*DRAINFSM, "doctor", "--job", "t", "--trial", "5"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--trial" in done.stderr
