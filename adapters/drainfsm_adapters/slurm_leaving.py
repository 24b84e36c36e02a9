"""How a run that wants to come back leaves. Slurm requeues what it ends, not what ends by itself.

- ``scontrol requeue`` of the run by itself works at any time, returns at once, and ends the run.
- A preempted run that is killed at the end of its grace is requeued; one that ends is not.
- A run that was cancelled must not be requeued: ``scontrol requeue`` would bring it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal

import msgspec

from drainfsm.adapter import AdapterContext
from drainfsm_adapters.slurm_commands import (
    Scontrol,
    SlurmFailedError,
    SlurmSilentError,
    run_command,
)
from drainfsm_adapters.slurm_evidence import OWN_ENDS, ending_cause
from drainfsm_adapters.slurm_options import Run, SlurmOptions
from drainfsm_adapters.slurm_records import RunFacts, SlurmJob

STAY_S_MAX = 3_600.0
"""Longer than a preemption's grace: then something else is wrong, and the node is wasted."""

PAUSE_S = 0.5
"""Between two tries while slurmctld, or munge, is away; doubles up to ``PAUSE_S_MAX``."""

PAUSE_S_MAX = 4.0
SAYING = 0.95
"""The rest of the time is for reporting how it went."""

TRY_S_MIN = 0.3
TRIES_MIN = 3
"""One command gets no more than this share of the time, so that another can follow."""

NOT_SENT = re.compile("unable to contact|connect failure|connection refused|munge", re.IGNORECASE)
"""What sbatch says if no slurmctld has received it."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an order."""

    done: str = ""
    """In words; empty: it is not known to be done."""

    job: SlurmJob | None
    """The record, as last read."""

    problem: str = ""
    refused: bool = False
    """slurmctld has refused, and will refuse again."""


class _Time:
    """Until the last act must be done."""

    def __init__(self, timeout_s: float) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._end_s = self._now_s() + timeout_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._end_s - self._now_s())


class Leaving:
    """The last act. A requeue may be ordered again and again: it is one requeue, and the record
    tells when it is done. Submitting again makes another job: that happens once, and only when it
    is certain that there will be no requeue."""

    def __init__(
        self,
        context: AdapterContext,
        options: SlurmOptions,
        run: Run,
        scontrol: Scontrol,
        facts: RunFacts,
    ) -> None:
        self._context = context
        self._options = options
        self._run = run
        self._scontrol = scontrol
        self._facts = facts
        self._stays = False

    async def left(self, *, timeout_s: float, held: str = "") -> str:
        """See that the run comes back. ``held``: why not before somebody has looked at it. Returns
        what was done.

        Raises:
            SlurmFailedError: it will not come back by itself, or that is not known; says why.
        """
        time, own_id = _Time(timeout_s * SAYING), self._run.own_id
        again = bool(self._options.resubmit) and not held
        if self._options.requeue == "none":
            if not again:
                return "not requeued: [adapters.slurm] requeue = none"
            return await self._resubmit(time)
        asked = await self._insist(time, held=held)
        if asked.done:
            return asked.done
        job = await self._record(time) or asked.job  # it may have been obeyed nevertheless
        if job is not None and job.restarts > self._run.restarts:
            return self._done(held)
        if job is not None and not held and self._killing_requeues(job):
            return f"{self._stay()}, for {asked.problem}"
        if not asked.refused:
            raise SlurmFailedError(
                f"it is not known whether the job comes back: {asked.problem}; look with "
                f"`scontrol show job {own_id}` before you submit it again"
            )
        if not again:
            raise SlurmFailedError(
                f"the job will not come back by itself: {asked.problem}; submit it again, or set "
                "[adapters.slurm] resubmit"
            )
        return await self._resubmit(time)

    async def _insist(self, time: _Time, *, held: str) -> _Asked:
        """Order it until slurmctld has answered, or there is no time."""
        pause_s, job = PAUSE_S, await self._record(time)
        while True:
            if job is not None and (done := self._settled(job, held=held)):
                return _Asked(done=done, job=job)
            problem, refused = await self._order(job, time, held=held)
            if not problem:
                return _Asked(done=self._done(held), job=job)
            if refused or time.left_s <= pause_s:
                return _Asked(job=job, problem=problem, refused=refused)
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)
            job = await self._record(time)
            if job is not None and job.restarts > self._run.restarts:
                return _Asked(done=self._done(held), job=job)

    def _done(self, held: str) -> str:
        own_id = self._run.own_id
        if held:
            return f"job {own_id} is held ({held}); `scontrol release {own_id}` lets it go on"
        return f"job {own_id} is requeued"

    def _settled(self, job: SlurmJob, *, held: str) -> str:
        """What to report if nothing is left to do; empty: the run is to be requeued."""
        if job.restarts > self._run.restarts:
            return f"Slurm has requeued the job already: restart {job.restarts}"
        cause = ending_cause(job, grace_end_unix_s=self._facts.grace_end_unix_s)
        if job.ending and cause in OWN_ENDS:
            return f"the job {OWN_ENDS[cause]}: not requeued"
        if not held and self._options.requeue == "stay" and self._killing_requeues(job):
            return self._stay()
        return ""

    async def _record(self, time: _Time) -> SlurmJob | None:
        with contextlib.suppress(SlurmFailedError):
            return await self._scontrol.job(self._run.job_id, timeout_s=self._try_s(time))
        return None

    async def _order(self, job: SlurmJob | None, time: _Time, *, held: str) -> tuple[str, bool]:
        """Why it failed, empty if it did not, and whether slurmctld has refused for good."""
        if job is not None and not job.requeue:
            return "requeue is off for this job", True
        order = self._scontrol.hold if held else self._scontrol.requeue
        try:
            await order(self._run.own_id, timeout_s=self._try_s(time))
        except SlurmFailedError as error:
            return str(error), not isinstance(error, SlurmSilentError)
        return "", False

    def _try_s(self, time: _Time) -> float:
        return min(self._options.timeout_s, max(time.left_s / TRIES_MIN, TRY_S_MIN))

    def _killing_requeues(self, job: SlurmJob) -> bool:
        preempted = job.preempt_unix_s is not None and not job.ending
        return preempted and job.requeue and self._facts.limits.preemption_requeues

    async def _resubmit(self, time: _Time) -> str:
        """Once, unless it is certain that nothing was submitted. ``SLURM_JOB_ID`` must name this
        run alone: the array's number would name all of its tasks."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SLURM")
        }
        if conf := os.environ.get("SLURM_CONF"):
            environment["SLURM_CONF"] = conf
        environment["SLURM_JOB_ID"] = self._run.own_id
        command = ("/bin/sh", "-c", self._options.resubmit)
        while True:
            try:
                said = await run_command(command, timeout_s=time.left_s, environment=environment)
            except SlurmFailedError as error:
                if not NOT_SENT.search(str(error)) or time.left_s <= PAUSE_S:
                    raise SlurmFailedError(f"not submitted again: {error}") from error
                await asyncio.sleep(PAUSE_S)
            else:
                return f"submitted again: {said.strip()}"

    def _stay(self) -> str:
        self._stays = True
        return "staying until the preemption kills and requeues the job"

    async def stay(self) -> None:
        """Wait for SIGTERM, if ``left`` found that Slurm must end the run."""
        if not self._stays:
            return
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        try:
            async with asyncio.timeout(STAY_S_MAX):
                await ended.wait()
        except TimeoutError:
            pass
