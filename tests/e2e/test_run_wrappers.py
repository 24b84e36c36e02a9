"""What stands between an agent and its ranks besides a launcher, and what becomes of it in a drain:
wrappers that drop the environment, scripts with traps of their own, a launcher that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm_kit.agent_process import Agent
from drainfsm_kit.running import ROOMY, RunningJob

SAVES_LONGER_THAN_LEFTOVERS_LIVE = ("--save-s", "3")


def notice(job: RunningJob, agent: Agent) -> None:
    agent.signal()


def sigterm_to_everybody(job: RunningJob, agent: Agent) -> None:
    _to_everybody(job, signal.SIGTERM)


def ctrl_c_twice(job: RunningJob, agent: Agent) -> None:
    _to_everybody(job, signal.SIGINT)
    _to_everybody(job, signal.SIGINT)


def launcher_killed_first(job: RunningJob, agent: Agent) -> None:
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
    for pid in children.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    agent.signal()


def _to_everybody(job: RunningJob, number: int) -> None:
    for pid in job.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def can_unshare() -> bool:
    tried = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.parametrize(
    ("script", "happens"),
    [
        pytest.param("env -i RANKS", notice, id="environment-dropped"),
        pytest.param("true; env -i sh -c 'RANKS; true'", notice, id="dropped-below-a-shell"),
        pytest.param("RANKS", launcher_killed_first, id="launcher-killed-first"),
        pytest.param("RANKS", ctrl_c_twice, id="ctrl-c-twice"),
        pytest.param("trap 'exit 3' TERM; RANKS & wait", sigterm_to_everybody, id="trap-exits"),
        pytest.param(
            "trap 'kill $!; wait $!; exit 3' TERM; RANKS & wait",
            sigterm_to_everybody,
            id="trap-passes-it-on",
        ),
        pytest.param("(setsid RANKS &); sleep 1000", sigterm_to_everybody, id="grandchildren"),
        pytest.param("cd $(mktemp -d); rmdir $PWD; RANKS", notice, id="directory-gone"),
        pytest.param("RANKS <&- >&- 2>&-", notice, id="nothing-open"),
        pytest.param("RANKS | head -n 1", sigterm_to_everybody, id="pipe"),
        pytest.param(
            "unshare --pid --fork --mount-proc RANKS",
            notice,
            id="pid-namespace",
            marks=pytest.mark.skipif(not can_unshare(), reason="needs the right to unshare"),
        ),
    ],
)
def test_ranks_save_whatever_their_wrapper_does(
    job: RunningJob, script: str, happens: Callable[[RunningJob, Agent], None]
) -> None:
    ranks = " ".join(job.toy(*SAVES_LONGER_THAN_LEFTOVERS_LIVE, ranks=2))
    agent = job.start(
        ("bash", "-c", script.replace("RANKS", ranks)), grace_s=120.0, allowances=ROOMY
    )
    job.wait_for(e.HealthyStepReached)
    happens(job, agent)
    assert agent.wait() == 75, agent.output()
    (saved,) = job.find(e.ManifestPublished)
    assert [job.steps(rank)[-1] for rank in (0, 1)] == [saved.step] * 2
    (left,) = job.find(e.Exited)
    assert (left.nodes[0].exit_code, left.nodes[0].killed_ranks) == (0, ()), agent.output()
    job.wait_until_gone()


def test_an_empty_variable_says_that_no_agent_is_wanted(job: RunningJob) -> None:
    """An evaluation, say, that the job starts and that is not one of its ranks."""
    detached = " ".join(job.toy("--steps", "1"))
    script = f"DRAINFSM_SOCKET= {detached} && {detached}"
    agent = job.start(("bash", "-c", script))
    assert agent.wait() == 0, agent.output()
    assert "no agent (not under `drainfsm run`)" in agent.output()
    assert len(job.find(e.WorldFormed)) == 1
