"""Slurm: the job's time limit and preemption, its nodes' drain, its reservation; requeue, cordon.

The agent of node 0 speaks for the whole job: one poller a job, whatever its size.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import msgspec
from msgspec import UNSET

from drainfsm.adapter import AdapterContext, Departure, NoticeSink
from drainfsm.core.notice import Notice
from drainfsm_adapters.health import Health
from drainfsm_adapters.ledger import Ledger, Observed, Reading
from drainfsm_adapters.server_clock import ServerClock
from drainfsm_adapters.slurm_commands import Scontrol, SlurmFailedError, SlurmMissingError
from drainfsm_adapters.slurm_evidence import (
    OWN_REASON,
    Warned,
    end_of,
    leaving_nodes,
    maintenance_of,
    meaning_of,
    reservation_of,
)
from drainfsm_adapters.slurm_leaving import Leaving
from drainfsm_adapters.slurm_options import SOURCE, nodes_of_run, run_of, slurm_options
from drainfsm_adapters.slurm_records import RunFacts, SlurmJob, hosts_of

POLL_S_MAX = 30.0
"""slurmctld enforces limits no more often, and looks after thousands of jobs."""

POLL_S_MIN = 1.0
POLLS_PER_GRACE = 5
CONFIRM_S = 1.1
TIMEOUT_S_MIN = 0.5
FRESH_MS = 2_000
"""Agents of many nodes ask about one signal: they get one answer."""


def adapter(context: AdapterContext) -> SlurmAdapter:
    """The factory behind ``--source slurm`` and ``--cordon slurm``.

    Raises:
        ConfigError: an option is wrong, or this is not a process of a Slurm job.
    """
    return SlurmAdapter(context)


class SlurmAdapter:
    """One agent's view of its job."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context
        self._options = slurm_options(context.options)
        self._run = run_of(os.environ)
        self._scontrol = Scontrol(
            self._options, now_unix_ms=context.now_unix_ms, job_name=self._run.job_name
        )
        self._facts = RunFacts()
        self._ledger: Ledger | None = None
        self._warned_unix_ms: int | None = None
        """When the warning of ``--signal`` came."""

        self._asked: dict[str, tuple[int, asyncio.Task[SlurmJob | None]]] = {}
        self._leaving = Leaving(context, self._options, self._run, self._scontrol, self._facts)

    # --- notices --------------------------------------------------------------------------------

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled."""
        if self._context.node_rank > 0:
            await asyncio.Event().wait()
        self._ledger = Ledger(
            source=SOURCE,
            scope=self._run.name,
            sink=sink,
            clock=ServerClock(),
            now_unix_ms=self._context.now_unix_ms,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_job(self._ledger, sink))
            if self._options.nodes_s and self._options.node_drain == "leave":
                group.create_task(self._follow_nodes(self._ledger, sink))

    async def _follow_job(self, ledger: Ledger, sink: NoticeSink) -> None:
        health = self._health("job", sink)
        while True:
            async with self._trying(health, sink):
                await self._learn_limits(sink)
                job = await self._read_job()
                health.answered()
                unsure = self._settle_job(ledger, job)
                unsure |= await self._settle_reservation(ledger, job)
                if unsure:
                    await asyncio.sleep(CONFIRM_S)
                    continue
            await asyncio.sleep(self._poll_s())

    async def _follow_nodes(self, ledger: Ledger, sink: NoticeSink) -> None:
        names = nodes_of_run(os.environ)
        health = self._health("nodes", sink)
        while names:
            async with self._trying(health, sink):
                nodes = await self._scontrol.nodes(names, timeout_s=self._timeout_s())
                reservations = await self._scontrol.reservations(timeout_s=self._timeout_s())
                health.answered()
                ledger.settle("nodes", Reading(events=leaving_nodes(nodes)))
                planned = maintenance_of(
                    reservations,
                    nodes=frozenset(hosts_of(names)),
                    now_unix_ms=self._context.now_unix_ms(),
                )
                ledger.settle("maintenance", Reading(events=planned))
            await asyncio.sleep(self._options.nodes_s)

    def _health(self, name: str, sink: NoticeSink) -> Health:
        limit_ms = round(self._options.unknown_s * 1_000)
        return Health(source=f"{SOURCE}/{name}", limit_ms=limit_ms, sink=sink)

    @contextlib.asynccontextmanager
    async def _trying(self, health: Health, sink: NoticeSink) -> AsyncIterator[None]:
        """One look; what cannot be read is reported, and withdraws nothing."""
        began = self._context.now_unix_ms()
        try:
            yield
        except SlurmMissingError as error:
            sink.unknown(source=SOURCE, since_unix_ms=began, detail=str(error))
        except SlurmFailedError as error:
            now = self._context.now_unix_ms()
            health.silent(detail=str(error), since_unix_ms=began, now_unix_ms=now)

    async def _learn_limits(self, sink: NoticeSink) -> None:
        """Read the site's configuration, once, and how far its clock is off ours."""
        if self._facts.limits_known:
            return
        partition = os.environ.get("SLURM_JOB_PARTITION", "")
        limits = await self._scontrol.limits(partition, timeout_s=self._timeout_s())
        self._facts.configured(limits)
        if self._scontrol.ahead_s:
            sink.unknown(
                source=f"{SOURCE}/clock",
                since_unix_ms=self._context.now_unix_ms(),
                detail=f"slurmctld's clock is {self._scontrol.ahead_s:+d} s off this machine's: "
                "its times are converted",
            )

    async def _read_job(self) -> SlurmJob:
        return await self._scontrol.job(self._run.job_id, timeout_s=self._timeout_s())

    def _settle_job(self, ledger: Ledger, job: SlurmJob) -> bool:
        self._facts.job(job)
        observed = end_of(
            job,
            run=self._run,
            limits=self._facts.limits,
            grace_ms=self._context.grace_ms,
            now_unix_ms=self._context.now_unix_ms(),
            shortened=self._facts.shortened,
            grace_end_unix_s=self._facts.grace_end_unix_s,
        )
        return ledger.settle("job", _reading(observed))

    async def _settle_reservation(self, ledger: Ledger, job: SlurmJob) -> bool:
        """Also of a job that was taken out of its reservation."""
        observed = None
        if job.reservation:
            reservations = await self._scontrol.reservations(timeout_s=self._timeout_s())
            now = self._context.now_unix_ms()
            observed = reservation_of(job, reservations, now_unix_ms=now)
        return ledger.settle("reservation", _reading(observed))

    def _poll_s(self) -> float:
        poll_s = self._options.poll_s
        if not poll_s:
            grace_s = self._facts.limits.grace_s or 0
            preempts = self._facts.limits.preempt_mode.upper() not in ("", "OFF")
            poll_s = grace_s / POLLS_PER_GRACE if grace_s and preempts else POLL_S_MAX
        return max(POLL_S_MIN, min(POLL_S_MAX, poll_s))

    def _timeout_s(self) -> float:
        """For one command: no more than a quarter of the time left, if that is known."""
        timeout_s = self._options.timeout_s
        if self._facts.end_unix_s is not None:
            left_s = (self._facts.end_unix_s * 1_000 - self._context.now_unix_ms()) / 1_000
            timeout_s = min(timeout_s, max(TIMEOUT_S_MIN, left_s / 4))
        return timeout_s

    # --- signals --------------------------------------------------------------------------------

    async def interpret(self, notice: Notice, *, timeout_ms: int) -> Notice | None:
        """What a bare signal means, by the job's record. None: the record's own notice says it."""
        name = notice.native_id
        job = await self._look(name, timeout_s=timeout_ms / 1_000)
        if job is not None and self._ledger is not None:
            self._settle_job(self._ledger, job)
        meaning = meaning_of(
            name,
            job,
            run=self._run,
            limits=self._facts.limits,
            grace_ms=self._context.grace_ms,
            warning=self._warning(notice),
            signalled_unix_ms=notice.received_unix_ms,
            shortened=self._facts.shortened,
            grace_end_unix_s=self._facts.grace_end_unix_s,
        )
        if meaning is None:
            if name == self._options.warning_signal and self._warned_unix_ms is None:
                self._warned_unix_ms = notice.received_unix_ms
            return None if self._ledger is not None else notice
        return msgspec.structs.replace(
            notice,
            source=SOURCE,
            native_id=f"{self._run.name}/{name}",
            cause=meaning.cause,
            deadline_unix_ms=meaning.deadline_unix_ms,
            assumed=meaning.assumed or UNSET,
            detail=f"{name}; {meaning.detail}",
        )

    def _warning(self, notice: Notice) -> Warned:
        """All nodes hear one warning at about one time."""
        warned = self._warned_unix_ms
        heard = warned is not None and notice.received_unix_ms - warned > FRESH_MS
        options = self._options
        return Warned(name=options.warning_signal, lead_s=options.warning_s, heard=heard)

    async def _look(self, name: str, *, timeout_s: float) -> SlurmJob | None:
        now = self._context.now_unix_ms()
        asked_unix_ms, task = self._asked.get(name, (0, None))
        if task is None or now - asked_unix_ms > FRESH_MS:
            task = asyncio.ensure_future(self._ask(timeout_s))
            self._asked[name] = (now, task)
        return await asyncio.shield(task)

    async def _ask(self, timeout_s: float) -> SlurmJob | None:
        timeout_s = min(timeout_s, self._options.timeout_s)
        try:
            return await self._scontrol.job(self._run.job_id, timeout_s=timeout_s)
        except SlurmFailedError:
            return None

    # --- cordon, and the last act ---------------------------------------------------------------

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        """``state=drain``; a node that is drained already keeps the reason that it has."""
        names = ",".join(nodes) or self._run.node
        if not names:
            raise SlurmFailedError("no SLURMD_NODENAME in the environment: which node is this?")
        timeout_s = timeout_ms / 2_000
        known = await self._scontrol.nodes(names, timeout_s=timeout_s)
        open_ = [node.name for node in known if not node.drained]
        if open_:
            reason = f"{OWN_REASON} {self._context.job_id} leaves"
            await self._scontrol.drain(",".join(open_), reason=reason, timeout_s=timeout_s)
        return f"drained: {', '.join(open_) or 'nothing new'}"

    async def left(self, departure: Departure) -> str:
        """Node 0 speaks for the job."""
        if self._context.node_rank > 0 or not (departure.requeue or departure.held):
            return ""
        timeout_s = departure.timeout_ms / 1_000
        return await self._leaving.left(timeout_s=timeout_s, held=departure.held)

    async def stay(self) -> None:
        """After everything: where only a run that is killed is requeued, wait to be killed."""
        await self._leaving.stay()


def _reading(observed: Observed | None) -> Reading:
    return Reading(events=() if observed is None else (observed,))
