"""Signs of life of an attempt, to tell a silent one from a busy one.

The agent of node 0 touches its ``run.json`` with every heartbeat. Readers compare what they saw
before with what they see now, so that no two clocks are ever compared.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from drainfsm.core.fold import Fold
from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import journals, read_journal
from drainfsm.runtime.clock import RunningTime
from drainfsm.runtime.paths import read_run_info, run_info_path
from drainfsm.runtime.threads import in_thread


class Sign(NamedTuple):
    """Any two that differ have life between them."""

    epoch: int
    touched_unix_ns: int


def sign_of_life(state_dir: Path, *, job: str) -> Sign | None:
    """The last one of the newest attempt; None: none ever started with this state directory."""
    info = read_run_info(state_dir, job)
    try:
        touched = run_info_path(state_dir, job).stat().st_mtime_ns
    except OSError:
        return None
    return None if info is None else Sign(info.epoch, touched)


def give_sign(state_dir: Path, *, job: str, epoch: int) -> None:
    """Does nothing for an attempt that a newer one has replaced."""
    info = read_run_info(state_dir, job)
    if info is not None and info.epoch == epoch:
        os.utime(run_info_path(state_dir, job))


async def live(state_dir: Path, *, job: str, epoch: int, heartbeat_s: float) -> None:
    """Give a sign with every heartbeat, off the loop: a state directory may hang."""
    while True:
        await asyncio.sleep(heartbeat_s)
        try:
            await in_thread("liveness", lambda: give_sign(state_dir, job=job, epoch=epoch))
        except OSError:
            continue  # the next one may work; watchers see a silent attempt until then


async def silence(
    look: Callable[[], Sign | None], *, since: Sign | None, silence_s: float, needs_sign: bool
) -> None:
    """Returns once nothing has changed for this long. ``needs_sign``: only after a first change
    from ``since``, as a start may wait for a slow store."""
    time = RunningTime(pause_ms=round(silence_s * 250))
    seen, changed_ms = since, time.now_ms()
    while True:
        await asyncio.sleep(silence_s / 8)
        now, now_ms = await in_thread("liveness", look), time.now_ms()
        if now != seen:
            seen, changed_ms, needs_sign = now, now_ms, False
        elif not needs_sign and now_ms - changed_ms > silence_s * 1_000:
            return


def ended_with(state_dir: Path, *, job: str) -> int | None:
    """Exit code of the newest attempt in the journals here; None: its end is not on record."""
    newest = max(journals(state_dir, job).items(), default=None)
    if newest is None:
        return None
    fold = Fold(job_id=job, epoch=newest[0])
    try:
        fold.read_all(read_journal(newest[1]))
    except (DrainfsmError, OSError):
        return None
    return fold.state.attempt.exit_code
