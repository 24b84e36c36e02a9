"""Slurm's own commands, each with a time limit. They speak to slurmctld, which may not answer."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

from drainfsm_adapters.slurm_options import SlurmOptions
from drainfsm_adapters.slurm_records import (
    SlurmJob,
    SlurmLimits,
    SlurmNode,
    SlurmReservation,
    ahead_s,
    by_our_clock,
    job_of,
    limits_of,
    nodes_of,
    reservations_of,
)

OUTPUT_CHARACTERS_MAX = 300
NO_CONTACT = re.compile(
    "contact|connect|timed out|socket|munge|authenticat|zero bytes|communication|temporar",
    re.IGNORECASE,
)
"""What Slurm's commands say when slurmctld or munge is away. All else is a refusal by slurmctld."""

TRIES = 3
"""Slurm sends SIGTERM twice, within milliseconds."""


def wall_clock_unix_ms() -> int:
    return time.time_ns() // 1_000_000


class SlurmFailedError(Exception):
    """A command gave no answer in time, or was refused."""


class SlurmSilentError(SlurmFailedError):
    """No answer, or not in time: what was ordered may still be done."""


class SlurmMissingError(SlurmFailedError):
    """A command cannot be started."""


class SlurmSignalledError(SlurmSilentError):
    """A command was ended by a signal: with proctrack/linuxproc Slurm's SIGTERM to the job's
    processes reaches it, too. What it did is not known."""


async def run_command(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> str:
    """Its output.

    Raises:
        SlurmFailedError: says what went wrong.
        SlurmSilentError: and that there was no answer.
        SlurmMissingError: and what to do.
        SlurmSignalledError: what it did is not known.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(os.environ if environment is None else environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmMissingError(
            f"cannot run {command[0]}: {error.strerror}; in a container, mount Slurm's commands "
            "and the munge socket, or name scontrol in [adapters.slurm]"
        ) from error
    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            output, errors = await process.communicate()
    except TimeoutError:
        raise SlurmSilentError(f"{command[0]} gave no answer within {timeout_s:.1f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode is not None and process.returncode < 0:
        raise SlurmSignalledError(f"{' '.join(command[:3])}: ended by signal {-process.returncode}")
    if process.returncode != 0:
        said = (errors or output).decode(errors="replace").strip()[:OUTPUT_CHARACTERS_MAX]
        kind = SlurmSilentError if NO_CONTACT.search(said) else SlurmFailedError
        raise kind(f"{' '.join(command[:3])}: {said or process.returncode}")
    return output.decode(errors="replace")


class Scontrol:
    """The questions and orders that this adapter has. All raise ``SlurmFailedError``. Answers state
    times by our clock, once ``limits`` has compared it with slurmctld's."""

    def __init__(
        self,
        options: SlurmOptions,
        *,
        now_unix_ms: Callable[[], int] = wall_clock_unix_ms,
        job_name: str = "",
    ) -> None:
        self.ahead_s = 0
        """Slurmctld's clock less ours."""

        self._now_unix_ms = now_unix_ms
        self._job_name = job_name
        self._program = options.scontrol
        self._job_format = "--json" if options.json else "-o"
        self._environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}

    async def job(self, job_id: str, *, timeout_s: float) -> SlurmJob:
        output = await self._run(self._job_format, "show", "job", job_id, timeout_s=timeout_s)
        try:
            found = job_of(output, job_id=job_id, job_name=self._job_name)
        except ValueError as error:
            raise SlurmFailedError(f"scontrol show job: not understood: {error}") from error
        if found is None:
            raise SlurmFailedError(f"slurmctld does not know job {job_id}")
        return by_our_clock(found, self.ahead_s)

    async def nodes(self, names: str, *, timeout_s: float) -> tuple[SlurmNode, ...]:
        return nodes_of(await self._run("-o", "show", "node", names, timeout_s=timeout_s))

    async def reservations(self, *, timeout_s: float) -> tuple[SlurmReservation, ...]:
        shown = await self._run("-o", "show", "reservation", timeout_s=timeout_s)
        return tuple(by_our_clock(one, self.ahead_s) for one in reservations_of(shown))

    async def limits(self, partition: str, *, timeout_s: float) -> SlurmLimits:
        """The site's configuration; a partition that is hidden from us is left out."""
        sent_unix_ms = self._now_unix_ms()
        config = await self._run("show", "config", timeout_s=timeout_s)
        received_unix_ms = self._now_unix_ms()
        self.ahead_s = ahead_s(config, sent_unix_ms=sent_unix_ms, received_unix_ms=received_unix_ms)
        described = ""
        if partition:
            described = await self._run("-o", "show", "partition", partition, timeout_s=timeout_s)
        return limits_of(config=config, partition=described)

    async def drain(self, names: str, *, reason: str, timeout_s: float) -> None:
        order = (f"nodename={names}", "state=drain", f"reason={reason}")
        await self._run("update", *order, timeout_s=timeout_s)

    async def requeue(self, own_id: str, *, timeout_s: float) -> None:
        """Only one try: it may have been obeyed although it failed. The job's record tells."""
        await self._run("requeue", own_id, timeout_s=timeout_s, tries=1)

    async def hold(self, own_id: str, *, timeout_s: float) -> None:
        """Requeue it, and hold it until somebody releases it. Only one try, as ``requeue``."""
        await self._run("requeuehold", own_id, timeout_s=timeout_s, tries=1)

    async def delay(self, own_id: str, *, start_in_s: int, timeout_s: float) -> None:
        """A waiting job starts no sooner."""
        order = (f"JobId={own_id}", f"StartTime=now+{start_in_s}")
        await self._run("update", *order, timeout_s=timeout_s)

    async def stop_starting(self, own_id: str, *, timeout_s: float) -> None:
        """A waiting job waits until somebody releases it."""
        await self._run("hold", own_id, timeout_s=timeout_s)

    async def release(self, own_id: str, *, timeout_s: float) -> None:
        await self._run("release", own_id, timeout_s=timeout_s)

    async def _run(self, *arguments: str, timeout_s: float, tries: int = TRIES) -> str:
        now_s = asyncio.get_running_loop().time
        give_up_s = now_s() + timeout_s
        for left in reversed(range(tries)):
            try:
                return await run_command(
                    (self._program, *arguments),
                    timeout_s=give_up_s - now_s(),
                    environment=self._environment,
                )
            except SlurmSignalledError:
                if not left:
                    raise
        raise AssertionError("no try")
