"""What ``drainfsm init`` proposes for a script makes it drain, and resume to the same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drainfsm.cli.main import main
from drainfsm.core import events as e
from drainfsm_kit.init_scripts import SCRIPTS, STEPS
from drainfsm_kit.running import ROOMY, RunningJob

WITHIN, AT_THE_END = 11, 15
"""Steps at which the job leaves: in the middle of the second epoch, and after its last batch."""


def _batches(name: str, step: int) -> int:
    """Items that a rank has taken when it is in this step: two for each, or one."""
    return step + 1 if name in ("range", "while") else 2 * (step + 1)


STATEFUL = "from torchdata.stateful_dataloader import StatefulDataLoader\n"
LEFT_IN = {
    "epochs": AT_THE_END,
    "trainer": WITHIN,
    "accumulation": WITHIN,
    "while": WITHIN,
    "sampler": WITHIN,
}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of uninterrupted runs of the scripts, made by one process.

    As they were, but for the loader that can say where it is: it draws other random numbers.
    """
    folder = tmp_path_factory.mktemp("wanted")
    for name in LEFT_IN:
        (folder / name).mkdir()
        script = SCRIPTS[name].replace("= DataLoader(", "= StatefulDataLoader(")
        (folder / name / "train.py").write_text(STATEFUL + script)
    code = "import os, runpy, sys\nfor name in sys.argv[1:]:\n    os.chdir(name)\n"
    code += "    runpy.run_path('train.py', run_name='__main__')\n    os.chdir('..')\n"
    subprocess.run([sys.executable, "-c", code, *LEFT_IN], check=True, cwd=folder)
    return folder


@pytest.mark.parametrize("name", LEFT_IN)
def test_a_script_that_was_changed_by_rule_resumes_exactly(
    name: str, job: RunningJob, wanted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = LEFT_IN[name]
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPTS[name])
    monkeypatch.chdir(project)
    assert main(["init", "--apply", "--job", job.job]) == 0
    command = (sys.executable, "train.py")
    pause = {"PAUSE_AT": str(_batches(name, last))}
    agent = job.start(command, grace_s=120, allowances=ROOMY, variables=pause)
    job.wait(lambda: Path("paused").exists() or None, what=f"step {last}")
    job.notify(in_s=120)
    assert job.wait_for(e.StopStepAgreed).stop_step == last
    Path("go").touch()
    assert agent.wait() == 75, agent.output()
    assert len(job.find(e.ManifestPublished)) == 1, agent.output()
    again = job.start(command, grace_s=120, allowances=ROOMY)
    assert again.wait() == 0, again.output()
    assert job.find(e.CheckpointRestored, epoch=2)[0].step == last
    assert job.find(e.CheckpointCommitted, epoch=2)[-1].step == STEPS - 1
    expected = torch.load(wanted / name / "weights.pt")
    assert _same(torch.load("weights.pt"), expected)
    Path("weights.pt").unlink()
    third = job.start(command, grace_s=120, allowances=ROOMY)
    assert third.wait() == 0, third.output()
    assert _same(torch.load("weights.pt"), expected), "a job that is done trains nothing twice"
    assert job.find(e.CheckpointCommitted, epoch=3) == []


def _same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[key], expected[key]) for key in expected)
