"""A short start of a job of its own, to see whom a signal reaches. Nothing of it is kept."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.text import printable
from drainfsm.drills.errors import DrillError
from drainfsm.drills.job import DrillAttempt, DrillJob, DrillSettings
from drainfsm.drills.run import NOBODY
from drainfsm.drills.scenarios import signal_pids
from drainfsm.runtime.processes.proc import Process, job_processes, name_of, process

NEVER = 1_000_000_000
"""Steps between periodic saves."""

GRACE_S_MIN = 120.0
LINES_SAID = 3
SIGNAL = signal.SIGUSR1


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the signal reached."""

    rank_count: int = 0
    held_count: int = 0
    """Ranks that stopped at one step because of it."""

    held_ms: int = 0
    """Until the last of them did."""

    missing: tuple[str, ...] = ()
    helper_count: int = 0
    """Processes of the ranks that are no ranks: data loaders."""

    ended: tuple[str, ...] = ()
    """Names of helpers that the signal ended."""

    problem: str = ""
    """Not empty: it did not come to that."""


def try_signal(command: Sequence[str], allowances: Allowances, *, timeout_s: float) -> Trial:
    """Starts the command under an agent, with store, log and state in a temporary directory, sends
    SIGUSR1 to all of its processes once every rank has made a step, and ends it.

    ``timeout_s``: longest wait for that step.
    """
    fixed_ms = allowances.quiesce_ms + allowances.commit_ms + allowances.exit_margin_ms
    settings = DrillSettings(
        command=tuple(command),
        grace_s=max(GRACE_S_MIN, 2 * fixed_ms / 1_000),
        every_steps=NEVER,
        allowances=allowances,
        nats_url=NOBODY,
        timeout_s=timeout_s,
    )
    root = Path(tempfile.mkdtemp(prefix="drainfsm-trial-"))
    job = DrillJob(root / "trial", settings)
    try:
        return _tried(job, job.start())
    except DrillError as error:
        return Trial(problem=str(error))
    finally:
        job.close()
        shutil.rmtree(root, ignore_errors=True)


def _tried(job: DrillJob, attempt: DrillAttempt) -> Trial:
    """Raises: DrillError: it did not come to its first step in time."""
    if not job.wait_for(e.HealthyStepReached, epoch=1):
        return Trial(problem=f"it ended before its first step: {_said(attempt)}")
    pids = attempt.everything()
    helpers = {one: name_of(one.pid) for one in helpers_of(attempt)}
    signal_pids([attempt.process.pid, *pids], SIGNAL)
    job.wait(lambda: _answered(job) or attempt.poll() is not None, what="answer", quick=True)
    ended = [name for one, name in helpers.items() if not _lives(one)]
    (world, *_) = job.find(e.WorldFormed, 1)
    held, late = job.find(e.RanksQuiesced, 1), job.find(e.QuiesceTimedOut, 1)
    missing = [one for event in late for one in event.missing]
    problem = "" if held or late else f"it ended: {_said(attempt)}"
    return Trial(
        rank_count=world.world_size,
        held_count=held[0].rank_count if held else world.world_size - len(missing),
        held_ms=held[0].quiesce_ms if held else 0,
        missing=tuple(f"rank {one.rank} ({printable(one.phase)})" for one in missing),
        helper_count=len(helpers),
        ended=tuple(sorted(ended)),
        problem=problem,
    )


def _answered(job: DrillJob) -> bool:
    kinds = (e.RanksQuiesced, e.QuiesceTimedOut)
    return any(isinstance(event, kinds) for event in job.events(1))


def helpers_of(attempt: DrillAttempt) -> list[Process]:
    """What ranks have started: a rank's environment is theirs, too."""
    ranks = set(attempt.ranks())
    return [
        one
        for one in job_processes(attempt.process.pid, others=())
        if one.pid in ranks and one.parent in ranks
    ]


def _lives(one: Process) -> bool:
    now = process(one.pid)
    return now is not None and now.state != "Z" and now.session == one.session


def _said(attempt: DrillAttempt) -> str:
    """What the command said last: errors, if there are any."""
    lines = [line.strip() for line in attempt.tail().splitlines()]
    lines = [line for line in lines if line and not line.startswith("drainfsm:")]
    errors = [line for line in lines if "Error" in line or "error" in line]
    return " / ".join(printable(line) for line in (errors or lines)[-LINES_SAID:])
