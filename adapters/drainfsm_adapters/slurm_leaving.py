"""How a run that wants to come back leaves. Slurm requeues what it ends, not what ends by itself.

- ``scontrol requeue`` of the run by itself works at any time, returns at once, and ends the run.
- A preempted run that is killed at the end of its grace is requeued; one that ends is not.
- A run that was cancelled must not be requeued: ``scontrol requeue`` would bring it back.
"""

from __future__ import annotations

import asyncio
import os
import signal

from drainfsm.adapter import AdapterContext
from drainfsm_adapters.slurm_commands import Scontrol, SlurmFailedError, run_command
from drainfsm_adapters.slurm_evidence import ending_cause
from drainfsm_adapters.slurm_options import Run, SlurmOptions
from drainfsm_adapters.slurm_records import SlurmJob, SlurmLimits

STAY_S_MAX = 3_600.0
"""Longer than a preemption's grace: then something else is wrong, and the node is wasted."""

RECORD_SHARE = 3
"""A third of the time for reading the job's record."""


class Leaving:
    def __init__(
        self, context: AdapterContext, options: SlurmOptions, run: Run, scontrol: Scontrol
    ) -> None:
        self.limits = SlurmLimits()
        self._context = context
        self._options = options
        self._run = run
        self._scontrol = scontrol
        self._stays = False

    async def left(self, *, timeout_s: float) -> str:
        """See that the run comes back. Returns what was done.

        Raises:
            SlurmFailedError: it will not come back by itself; says why.
        """
        if self._options.requeue == "none" and not self._options.resubmit:
            return "not requeued: [adapters.slurm] requeue = none"
        try:
            record_s = timeout_s / RECORD_SHARE
            job: SlurmJob | None = await self._scontrol.job(self._run.job_id, timeout_s=record_s)
        except SlurmFailedError:
            job = None
        if job is not None:
            if job.restarts > self._run.restarts:
                return f"Slurm has requeued the job already: restart {job.restarts}"
            if job.ending and ending_cause(job) == "cancelled":
                return "the job was cancelled: not requeued"
            if self._options.requeue == "stay" and self._killing_requeues(job):
                return self._stay()
        return await self._come_back(job, timeout_s=timeout_s - record_s)

    async def _come_back(self, job: SlurmJob | None, *, timeout_s: float) -> str:
        refused = "requeue is off for this job"
        if self._options.requeue != "none" and (job is None or job.requeue):
            try:
                await self._scontrol.requeue(self._run.job_id, timeout_s=timeout_s / 2)
            except SlurmFailedError as error:
                if await self._was_requeued(timeout_s=timeout_s / 4):
                    return f"job {self._run.job_id} is requeued"
                if job is not None and self._killing_requeues(job):
                    return f"{self._stay()}, for {error}"
                refused = str(error)
            else:
                return f"job {self._run.job_id} is requeued"
        if not self._options.resubmit:
            raise SlurmFailedError(
                f"the job will not come back by itself: {refused}; submit it again, or set "
                "[adapters.slurm] resubmit"
            )
        return await self._resubmit(timeout_s=timeout_s / 2)

    async def _was_requeued(self, *, timeout_s: float) -> bool:
        try:
            job = await self._scontrol.job(self._run.job_id, timeout_s=timeout_s)
        except SlurmFailedError:
            return False
        return job.restarts > self._run.restarts

    def _killing_requeues(self, job: SlurmJob) -> bool:
        preempted = job.preempt_unix_s is not None and not job.ending
        return preempted and job.requeue and self.limits.preemption_requeues

    async def _resubmit(self, *, timeout_s: float) -> str:
        kept = ("SLURM_CONF", "SLURM_JOB_ID")
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in kept or not name.startswith("SLURM")
        }
        command = ("/bin/sh", "-c", self._options.resubmit)
        said = await run_command(command, timeout_s=timeout_s, environment=environment)
        return f"submitted again: {said.strip()}"

    def _stay(self) -> str:
        self._stays = True
        return "staying until the preemption kills and requeues the job"

    async def stay(self) -> None:
        """Until SIGTERM, where ``left`` found that the run must be ended by Slurm."""
        if not self._stays:
            return
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        try:
            async with asyncio.timeout(STAY_S_MAX):
                await ended.wait()
        except TimeoutError:
            pass
