"""What a job starts besides its ranks can be ended as ever, and its ranks survive a signal to
everybody, whatever launcher is in between."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm_kit.running import RunningJob

ENDS_A_CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "1000"])
child.terminate()
assert child.wait() == -15, child.returncode
"""

USES_A_POOL = """
import multiprocessing, time
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
"""

FORKS = """
import os, signal, time
child = os.fork()
if not child:
    time.sleep(1000)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -15
"""

WITH_PREEXEC = """
import os, subprocess
child = subprocess.Popen(["sleep", "1000"], preexec_fn=os.setpgrp)
child.terminate()
assert child.wait() == -15, child.returncode
"""

ATTACHED = """
if __name__ == "__main__":
    import drainfsm
    session = drainfsm.attach()
"""


@pytest.mark.parametrize("attach", [True, False], ids=["attached", "never-attached"])
@pytest.mark.parametrize(
    "part",
    [ENDS_A_CHILD, USES_A_POOL, FORKS, WITH_PREEXEC],
    ids=["popen", "pool", "fork", "preexec"],
)
def test_a_script_ends_its_children_as_ever(
    job: RunningJob, tmp_path: Path, part: str, attach: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text((ATTACHED if attach else "") + part)
    agent = job.start((sys.executable, str(script)))
    assert agent.wait() == 0, agent.output()


def test_a_wrapper_ends_its_monitor_as_ever(job: RunningJob, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    trained = " ".join(job.toy("--steps", "5"))
    script.write_text(f"sleep 1000 &\nMON=$!\n{trained}\nkill $MON\nwait\nexit 3\n")
    agent = job.start(("bash", str(script)))
    assert agent.wait() == 3, agent.output()


FLAGS = """
import signal, sys
import drainfsm

def save(directory, step):
    (directory / "step").write_text(str(step))

stop = []
checkpoint = drainfsm.attach().own_checkpoint(save=save, load=print)
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit())
for step in range(checkpoint.restore(), 1_000_000_000):
    if stop or checkpoint.step_done(step):
        break
"""


def test_handlers_that_are_set_up_after_attaching_end_no_rank(
    job: RunningJob, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FLAGS)
    job.grace_s = 120.0
    agent = job.start((sys.executable, str(script)))
    job.wait_for(e.HealthyStepReached)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for pid in job.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    assert agent.wait() == 75, agent.output()
    assert len(job.find(e.ManifestPublished)) == 1, agent.output()
    assert "its handler for SIGTERM, SIGUSR1 is replaced" in agent.output()


RESETS = "import signal, os, sys; [signal.signal(n, 0) for n in (10, 12, 15)]; "


@pytest.mark.parametrize("how", ["bash", "launcher", "resetting"])
def test_ranks_survive_a_signal_to_everybody_and_save(
    job: RunningJob, tmp_path: Path, how: str
) -> None:
    """The command itself dies of it; its attached ranks go on, drain, and say how it ended."""
    job.grace_s = 120.0
    script = tmp_path / "job.sh"
    script.write_text(f"{' '.join(job.toy())}\nexit 3\n")
    resetting = f"{RESETS} os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])"
    command = {
        "bash": ("bash", str(script)),
        "launcher": job.toy(ranks=2),
        "resetting": (sys.executable, "-c", resetting, *job.toy()),
    }[how]
    agent = job.start(command)
    job.wait_for(e.HealthyStepReached)
    everybody = job.processes()
    assert len(everybody) >= 3, "the agent, what it started, and a rank"
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    assert agent.wait() == 75, agent.output()
    assert len(job.find(e.ManifestPublished)) == 1, agent.output()
    exited = job.find(e.Exited)[0]
    assert (exited.nodes[0].exit_code, exited.nodes[0].killed_ranks) == (0, ())
    assert "its ranks go on without it" in agent.output()
    assert "ranks ignore" in agent.output()
