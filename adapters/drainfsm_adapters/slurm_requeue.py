"""What a restart policy has decided, carried out on a job that waits in Slurm's queue.

For callers outside the job: a job that has been requeued has no process that could order anything,
and one that runs cannot be given a time to start.
"""

from __future__ import annotations

from drainfsm_adapters.slurm_commands import Scontrol, SlurmFailedError
from drainfsm_adapters.slurm_options import SlurmOptions

TIMEOUT_S = 20.0
HELD = "JobHeldUser"
"""The record's reason when somebody holds the job: only somebody may release it."""


async def settle_waiting(
    job_id: str, *, hold: bool, start_in_s: int, release: bool, scontrol: str = "scontrol"
) -> str:
    """Returns what was done. ``release``: release a held job, if it is not to be held.

    Raises:
        SlurmFailedError: slurmctld refused, or does not answer.
    """
    orders = Scontrol(SlurmOptions(scontrol=scontrol))
    job = await orders.job(job_id, timeout_s=TIMEOUT_S)
    if "PENDING" not in job.states:
        states = "+".join(sorted(job.states)).lower()
        return f"job {job_id} is {states}: nothing is waiting to be started, nothing was done"
    held = HELD in job.reason or "JobHeldAdmin" in job.reason
    if hold:
        if held:
            return f"job {job_id} is held already"
        await orders.stop_starting(job_id, timeout_s=TIMEOUT_S)
        return f"job {job_id} is held; `scontrol release {job_id}` lets it go on"
    if held and not release:
        return f"job {job_id} is held by somebody; --release releases it"
    if held:
        await orders.release(job_id, timeout_s=TIMEOUT_S)
    if start_in_s > 0:
        await orders.delay(job_id, start_in_s=start_in_s, timeout_s=TIMEOUT_S)
        return f"job {job_id} starts in {start_in_s} s at the earliest"
    return f"job {job_id} may start" + (": it is released" if held else "")


__all__ = ["SlurmFailedError", "settle_waiting"]
