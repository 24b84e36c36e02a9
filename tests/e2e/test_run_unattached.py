"""Jobs that are not under the library's care: they keep what they had without an agent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from drainfsm.core import events as e
from drainfsm_kit.running import ROOMY, RunningJob

SAVES_BY_ITSELF = """
import pathlib, signal, sys, time
def save(number, frame):
    time.sleep(2)
    pathlib.Path(sys.argv[1]).write_text(signal.Signals(number).name)
    sys.exit(0)
for name in sys.argv[2:]:
    signal.signal(signal.Signals[name], save)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""

NEVER_ENDS = """
import signal, time
signal.signal(signal.SIGTERM, lambda number, frame: None)
print("up", flush=True)
while True:
    time.sleep(1)
"""

EXITS_WITH_0 = """
import signal, sys, time
from drainfsm.runtime.rank.attach import attach_session
session = attach_session()
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
step = 0
while not session.step_done(step):
    time.sleep(0.05)
    step += 1
"""


@pytest.fixture
def job(job: RunningJob) -> RunningJob:
    job.allowances, job.grace_s = ROOMY, 120.0
    return job


@pytest.fixture
def hang_up() -> Iterator[None]:
    """Whatever started these tests: agents begin as from a terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("shell", [False, True])
def test_a_command_that_never_attaches_handles_the_signal_itself(
    job: RunningJob, number: signal.Signals, shell: bool
) -> None:
    saved = job.directory / "saved"
    command: tuple[str, ...] = (
        sys.executable,
        "-c",
        SAVES_BY_ITSELF,
        str(saved),
        "SIGTERM",
        "SIGUSR1",
    )
    if shell:  # which has no handler, and whose end would take what it waits for with it
        command = ("bash", "-c", '"$@"; exit 0', "bash", *command)
    agent = job.start(command)
    job.wait(lambda: "up" in agent.output() or None, what="the job")
    agent.signal(number)
    assert agent.wait() == 75
    assert saved.read_text() == number.name
    assert "no process here has called drainfsm.attach()" in agent.output()
    assert job.find(e.SaveSkipped)[0].reason == "no process called drainfsm.attach()"
    assert job.find(e.Exited)[0].nodes[0].killed_ranks == ()


def test_a_command_that_never_attaches_and_never_ends_has_until_the_exit_margin(
    job: RunningJob,
) -> None:
    command = (sys.executable, "-c", NEVER_ENDS)
    agent = job.start(command, grace_s=16.0)
    job.wait(lambda: "up" in agent.output() or None, what="the job")
    agent.signal()
    assert agent.wait() == 75
    received, exited = job.find(e.NoticeReceived)[0], job.find(e.Exited)[0]
    lived_ms = 16_000 - exited.remaining_ms
    assert received.budget.remaining_ms - ROOMY.exit_margin_ms <= lived_ms
    assert exited.remaining_ms > 0


def test_a_rank_that_exits_with_0_and_has_not_closed_its_session_is_started_again(
    job: RunningJob,
) -> None:
    """Its own handler of the signal ends it before anybody has asked it to stop."""
    settings = {"cordon": "command", "adapters": {"command": {"cordon": "sleep 0.9"}}}
    agent = job.start((sys.executable, "-c", EXITS_WITH_0), settings=settings)
    job.wait_for(e.HealthyStepReached)
    (rank,) = set(job.processes()) - {agent.process.pid}
    agent.signal()
    job.wait_for(e.NoticeReceived)
    os.kill(rank, signal.SIGTERM)
    assert agent.wait() == 75


@pytest.mark.usefixtures("hang_up")
def test_a_closed_terminal_is_a_notice(job: RunningJob) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    agent.signal(signal.SIGHUP)
    assert agent.wait() == 75
    assert job.find(e.NoticeReceived)[0].notice.native_id == "SIGHUP"
    assert job.find(e.ManifestPublished) != []


@pytest.mark.usefixtures("hang_up")
def test_under_nohup_it_is_none(job: RunningJob) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    agent = job.start(job.toy("--steps", "100"))
    job.wait_for(e.HealthyStepReached)
    agent.signal(signal.SIGHUP)
    assert agent.wait() == 0
    assert job.find(e.NoticeReceived) == []


@pytest.mark.parametrize("leftover_s", [0.2, 60.0])
def test_what_outlives_the_command_has_its_time_and_is_named(
    job: RunningJob, leftover_s: float
) -> None:
    done = job.directory / "uploaded"
    upload = f"(sleep 1.5; touch {done}) & exit 0"
    agent = job.start(("bash", "-c", upload), settings={"leftover_s": leftover_s})
    assert agent.wait() == 0
    assert done.exists() == (leftover_s > 1)
    assert ("give --leftover" in agent.output()) == (leftover_s < 1)
