"""The thirteen scenarios: what is done to a job that trains, and what must not be missing after."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from drainfsm.core import events as e
from drainfsm.core.notice import Cause
from drainfsm.drills.disk import DrillDisk, HangingDisk, SlowDisk, SmallDisk
from drainfsm.drills.job import POLL_S, DrillAttempt, DrillJob
from drainfsm.runtime.coordinator.attempt_end import FENCED_EXIT_CODE

EARLIER_S = 3.0
"""So much earlier is the second notice's deadline."""

GOES_ON_S = 1.0
LINGERS_S = 30.0
"""Longest wait for processes that outlive their agent."""

SLOW_SAVE_MS = 6_000
"""A save that takes at least so long is one of a slow store."""

MISSING_SHARE = 0.25
"""Of the time that a slow save was measured to take: the window is so much too short."""

Play = Callable[[DrillJob, DrillAttempt], bool]
"""Does it to the attempt, which trains. Whether it struck: a save may be quicker than the fault."""


class Drilling(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario."""

    title: str
    play: Play
    decisions: tuple[str, ...]
    """What may become of the save. What struck too late may also end as ``saved``."""

    disk: Callable[[Path], DrillDisk] | None = None
    """The file system that the store lies on, where this machine has one to give."""

    drains: bool = True
    """False: it gives no notice that ends the attempt, so there is no budget to keep."""


def signal_pids(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _ended(job: DrillJob, attempt: DrillAttempt) -> None:
    """The agent is gone, and what it has started, if that goes at all."""
    job.wait(lambda: attempt.poll() is not None, what="end of the attempt")
    give_up = time.monotonic() + LINGERS_S
    while attempt.gone_unix_ms is None and time.monotonic() < give_up:
        attempt.poll()
        time.sleep(POLL_S)


def _maintenance(job: DrillJob, attempt: DrillAttempt) -> bool:
    job.notify(in_s=job.settings.grace_s, soft=True, cause=Cause.HOST_MAINTENANCE)
    _ended(job, attempt)
    return True


def _time_limit(job: DrillJob, attempt: DrillAttempt) -> bool:
    attempt.signal(signal.SIGUSR1)
    _ended(job, attempt)
    return True


def _short_grace(job: DrillJob, attempt: DrillAttempt) -> bool:
    job.notify(in_s=job.settings.short_s)
    _ended(job, attempt)
    return True


def _catch_save(job: DrillJob, attempt: DrillAttempt, before: set[str], *, periodic: bool) -> None:
    """Freeze all ranks as soon as they have begun to write a save that was not there ``before``."""
    ranks = attempt.ranks()

    def begun() -> bool:
        fresh = job.generations() - before
        return any(name.rpartition("-")[2].startswith("p") == periodic for name in fresh)

    job.wait(lambda: begun() or attempt.poll() is not None, what="next save", quick=True)
    signal_pids(ranks, signal.SIGSTOP)


def _existing_save(job: DrillJob, attempt: DrillAttempt) -> bool:
    """The next periodic save holds still until the notice is on record."""
    ranks = attempt.ranks()
    _catch_save(job, attempt, job.generations(), periodic=True)
    job.notify(in_s=job.settings.grace_s)
    signal_pids(ranks, signal.SIGCONT)
    _ended(job, attempt)
    kinds = [type(event) for event in job.events(1)]
    noticed = kinds.index(e.NoticeReceived) if e.NoticeReceived in kinds else len(kinds)
    return e.CheckpointCommitted in kinds[noticed:]


def _stuck_rank(job: DrillJob, attempt: DrillAttempt) -> bool:
    signal_pids(attempt.ranks()[-1:], signal.SIGSTOP)
    job.notify(in_s=job.settings.grace_s)
    _ended(job, attempt)
    return True


def _node_loss(job: DrillJob, attempt: DrillAttempt) -> bool:
    pids = [attempt.process.pid, *attempt.everything()]
    signal_pids(pids, signal.SIGSTOP)  # a machine that is gone lets nobody say good-bye
    signal_pids([*attempt.everything(), *pids], signal.SIGKILL)
    _ended(job, attempt)
    return True


def _second_request(job: DrillJob, attempt: DrillAttempt) -> bool:
    """Both while the ranks hold still, or the first drain would be over before."""
    ranks = attempt.ranks()
    earlier_s = max(job.settings.grace_s - EARLIER_S, job.settings.grace_s / 2)
    signal_pids(ranks, signal.SIGSTOP)
    try:
        job.notify(in_s=job.settings.grace_s, cause=Cause.HOST_MAINTENANCE)
        job.notify(in_s=earlier_s, native_id="second")
    finally:
        signal_pids(ranks, signal.SIGCONT)
    _ended(job, attempt)
    return len(job.find(e.NoticeReceived, 1)) > 1


def _broker_down(job: DrillJob, attempt: DrillAttempt) -> bool:
    """The attempt was started with a broker that is away."""
    job.notify(in_s=job.settings.grace_s)
    _ended(job, attempt)
    return True


def _on_failing_disk(job: DrillJob, attempt: DrillAttempt, *, without: Play) -> bool:
    """``without``: played where this machine has no such disk."""
    if job.disk is None:
        return without(job, attempt)
    with job.disk.failing():
        job.notify(in_s=job.settings.grace_s)
        _ended(job, attempt)
    return True


def _slow_store(job: DrillJob, attempt: DrillAttempt) -> bool:
    """Once a slow save is on record: a window in which a quick one would fit, and no such one."""
    with job.disk.failing() if job.disk is not None else contextlib.nullcontext():
        if job.disk is None:
            _slow_writers(job, attempt)

        def took_ms() -> int:
            saves = [event.sample for event in job.find(e.CheckpointCommitted, 1)]
            return max((save.durable_ms + save.commit_ms for save in saves), default=0)

        job.wait(lambda: took_ms() >= SLOW_SAVE_MS or attempt.poll() is not None, what="slow save")
        fixed, save_ms = job.settings.allowances, took_ms() * (1 - MISSING_SHARE)
        job.notify(in_s=(fixed.quiesce_ms + save_ms + fixed.exit_margin_ms) / 1_000)
        _ended(job, attempt)
    return True


def _slow_writers(job: DrillJob, attempt: DrillAttempt) -> None:
    """Where no file system can be slow: the ranks are, in the next periodic save."""
    ranks = attempt.ranks()
    _catch_save(job, attempt, job.generations(), periodic=True)
    time.sleep(SLOW_SAVE_MS / 1_000)
    signal_pids(ranks, signal.SIGCONT)


def _frozen_writers(job: DrillJob, attempt: DrillAttempt) -> bool:
    """Where no file system can hang: the ranks do, from the beginning of the save on."""
    before = job.generations()
    job.notify(in_s=job.settings.grace_s)
    _catch_save(job, attempt, before, periodic=False)
    _ended(job, attempt)
    return bool(job.find(e.SaveAbandoned, 1))


def _blocked_store(job: DrillJob, attempt: DrillAttempt) -> bool:
    """Where there is no file system to fill: no new checkpoint can be begun."""
    generations, aside = job.store / "generations", job.store / "generations.aside"
    generations.rename(aside)
    generations.write_text("full\n")
    try:
        job.notify(in_s=job.settings.grace_s)
        _ended(job, attempt)
    finally:
        generations.unlink()
        aside.rename(generations)
    return True


def _old_wakes_up(job: DrillJob, attempt: DrillAttempt) -> bool:
    """It sleeps, another attempt takes the job over, and it comes back."""
    pids = [attempt.process.pid, *attempt.everything()]
    signal_pids(pids, signal.SIGSTOP)
    job.start()
    struck = job.wait_for(e.HealthyStepReached, epoch=2)
    signal_pids(pids, signal.SIGCONT)
    _ended(job, attempt)
    return struck and attempt.process.returncode == FENCED_EXIT_CODE


def _withdrawn(job: DrillJob, attempt: DrillAttempt) -> bool:
    far_s = 20 * job.settings.grace_s
    job.notify(in_s=far_s, soft=True, cause=Cause.HOST_MAINTENANCE)
    job.withdraw("first")
    before = len(job.find(e.CheckpointCommitted, 1))
    job.wait_for(e.DrainCancelled, epoch=1)
    job.wait_for(e.CheckpointCommitted, epoch=1, count=before + 1)
    time.sleep(GOES_ON_S)
    return attempt.poll() is None


LOST = ("none",)
SCENARIOS: dict[str, Drilling] = {
    "maintenance": Drilling(title="voluntary maintenance", play=_maintenance, decisions=("saved",)),
    "time-limit": Drilling(
        title="the scheduler's signal before a time limit", play=_time_limit, decisions=("saved",)
    ),
    "short-grace": Drilling(
        title="a window that is too short", play=_short_grace, decisions=("skipped",)
    ),
    "existing-save": Drilling(
        title="a notice during an existing save", play=_existing_save, decisions=("saved",)
    ),
    "stuck-rank": Drilling(
        title="a rank stuck in a collective", play=_stuck_rank, decisions=("skipped", "abandoned")
    ),
    "node-loss": Drilling(
        title="a node that is lost at once", play=_node_loss, decisions=LOST, drains=False
    ),
    "second-request": Drilling(
        title="a second drain request", play=_second_request, decisions=("saved",)
    ),
    "broker-down": Drilling(title="the broker is down", play=_broker_down, decisions=("saved",)),
    "slow-store": Drilling(
        title="the store is slow", play=_slow_store, decisions=("skipped",), disk=SlowDisk
    ),
    "hanging-store": Drilling(
        title="the store hangs",
        play=partial(_on_failing_disk, without=_frozen_writers),
        decisions=("abandoned", "skipped"),
        disk=HangingDisk,
    ),
    "full-store": Drilling(
        title="the store takes nothing more",
        play=partial(_on_failing_disk, without=_blocked_store),
        decisions=("abandoned", "skipped"),
        disk=SmallDisk,
    ),
    "old-attempt": Drilling(
        title="an old attempt wakes up", play=_old_wakes_up, decisions=LOST, drains=False
    ),
    "withdrawn": Drilling(
        title="a notice that is withdrawn", play=_withdrawn, decisions=("cancelled",), drains=False
    ),
}
