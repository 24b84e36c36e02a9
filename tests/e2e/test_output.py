"""Whoever reads what is printed may stall, or be gone: the drain, and the end of ranks, go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from drainfsm.core import events as e
from drainfsm.core.trace import trace_id
from drainfsm_kit.marks import MARK
from drainfsm_kit.running import DRAINFSM, ROOMY, WAIT_S, RunningJob

GONE, CLOSED, FULL = "gone", "closed", "full"


@contextmanager
def reader(how: str) -> Iterator[int]:
    """A descriptor to write to, of a pipe whose reader is gone, or reads nothing; -1: closed."""
    if how == CLOSED:
        yield -1
        return
    ours, theirs = os.pipe()
    if how == GONE:
        os.close(ours)
    else:
        os.set_blocking(theirs, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(theirs, b"x" * 512):
                pass
        os.set_blocking(theirs, True)
    try:
        yield theirs
    finally:
        os.close(theirs)
        if how == FULL:
            os.close(ours)


@pytest.mark.parametrize("how", [GONE, CLOSED, FULL])
def test_a_drain_saves_whatever_becomes_of_stderr(job: RunningJob, how: str) -> None:
    with reader(how) as stderr:
        agent = job.start(job.toy(ranks=2), allowances=ROOMY, grace_s=120.0, stderr=stderr)
        job.wait_for(e.HealthyStepReached)
        agent.signal()
        assert agent.wait() == 75
    published = job.find(e.ManifestPublished)[0]
    assert job.steps(0)[-1] == job.steps(1)[-1] == published.step
    assert job.find(e.Exited)[0].nodes[0].killed_ranks == ()


@pytest.mark.parametrize("how", [GONE, CLOSED, FULL])
def test_ranks_leave_when_their_agent_is_gone(job: RunningJob, how: str) -> None:
    """Ctrl-\\ on an agent: the kernel ends the launcher, and the ranks end by themselves."""
    with reader(how) as stderr:
        agent = job.start(job.toy(ranks=2), stderr=stderr)
        job.wait_for(e.HealthyStepReached)
        agent.signal(signal.SIGQUIT)
        assert agent.wait() == -signal.SIGQUIT
        job.wait_until_gone()


@pytest.mark.parametrize("how", [GONE, CLOSED, FULL])
def test_a_supervisor_starts_the_next_attempt_whatever_becomes_of_stderr(
    job: RunningJob, how: str
) -> None:
    common = ("--job", job.job, "--state-dir", str(job.state_dir))
    run = (*DRAINFSM, "run", *common, "--store", job.store_url, "--nats", job.nats, "--")
    die = job.toy("--die", "0@3@75", "--steps", "6", "--every", "2")
    with reader(how) as stderr:
        supervisor = subprocess.Popen(
            (*DRAINFSM, "supervise", *common, "--backoff", "0.05", "--", *run, *die),
            env={**os.environ, MARK: job.job},
            stderr=None if stderr == -1 else stderr,
            preexec_fn=(lambda: os.close(2)) if stderr == -1 else None,
        )
        try:
            job.wait_anyway(
                lambda: job.find(e.AttemptStarted, 2) or None, what="start of attempt 2"
            )
        finally:
            supervisor.kill()
            supervisor.wait()
            for pid in job.processes():
                os.kill(pid, signal.SIGKILL)


def test_a_reader_that_stalled_gets_what_was_said_meanwhile(job: RunningJob) -> None:
    """Its pipe is full while the job drains; what had room to wait comes later, in order."""
    with reader(FULL) as stderr:
        ours = os.open(f"/proc/self/fd/{stderr}", os.O_RDONLY | os.O_NONBLOCK)
        agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0, stderr=stderr)
        job.wait_for(e.HealthyStepReached)
        agent.signal()
        job.wait_for(e.ManifestPublished)
        said = b""
        while b"is committed" not in said:
            try:
                said += os.read(ours, 65_536).replace(b"x", b"")
            except BlockingIOError:
                assert agent.process.poll() is None, said
        os.close(ours)
        agent.wait()
    assert said.index(b"the job starts from the beginning") < said.index(b"all ranks stop after")


def test_json_lines_for_collectors(job: RunningJob) -> None:
    settings = {"log_format": "json"}
    agent = job.start(job.toy(), allowances=ROOMY, grace_s=120.0, settings=settings)
    job.wait_for(e.HealthyStepReached)
    agent.signal()
    assert agent.wait() == 75
    said = agent.output().splitlines()
    lines = [json.loads(line) for line in said if not line.startswith("drainfsm: ")]  # of a rank
    assert {(line["job"], line["node_rank"]) for line in lines} == {(job.job, 0)}
    narrated = [line for line in lines if line["logger"] == "drainfsm.coordinator"]
    assert {line["level"] for line in narrated} == {"info"}
    assert {line["epoch"] for line in narrated} == {1}
    drain_id = f"{job.job}/1/1"
    about = {line["event"]: (line.get("drain_id"), line.get("trace_id")) for line in narrated}
    assert about["attempt_started"] == (None, None)
    assert about["notice_received"] == about["exited"] == (drain_id, trace_id(drain_id))
    kinds = [line["event"] for line in narrated]
    assert kinds[0] == "attempt_started"
    assert (
        kinds.index("notice_received") < kinds.index("manifest_published") < kinds.index("exited")
    )


@pytest.mark.parametrize("command", ["explain", "replay", "report"])
def test_a_full_disk_behind_stdout_is_a_message(job: RunningJob, command: str) -> None:
    agent = job.start(job.toy("--steps", "3"))
    assert agent.wait() == 0
    with open("/dev/full", "wb") as full:
        told = subprocess.run(
            (*DRAINFSM, command, "--job", job.job, "--state-dir", str(job.state_dir)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert told.returncode == 1
    assert told.stderr == "drainfsm: cannot write the output: No space left on device\n"
