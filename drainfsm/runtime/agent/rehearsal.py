"""A restore on purpose: the job's own command loads a generation, and is ended before it trains."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from drainfsm.core.events import CheckpointRestored, HealthyStepReached, RestoreRefused
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import ConfigError
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.agent.rank_server import RankServer
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.output import STDERR
from drainfsm.runtime.processes.job import Job, become_subreaper
from drainfsm.runtime.processes.launch import CANNOT_EXECUTE, NOT_FOUND
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.environment import EPOCH_VARIABLE, SOCKET_VARIABLE

log = logging.getLogger("drainfsm.drill")

LAST_WORDS_S = 1.0
"""After the command has ended: for what its ranks said last."""


class Rehearsed(NamedTuple):
    detail: str
    restored: bool = False


class Rehearsal:
    """As much of an agent as ranks need to restore. No attempt: nothing is claimed or saved."""

    def __init__(
        self, config: RunConfig, target: RestoreTarget, *, epoch: int, store_url: str
    ) -> None:
        settings = replace(
            config.checkpoint, every_steps=0, every_s=0, verify="checksums", on_refused="fail"
        )
        welcome = n.Welcome(
            mac=b"",
            now_unix_ms=0,
            job_id=config.job,
            epoch=epoch,
            attempt_id="drill",
            store_url=store_url,
            settings=settings,
        )
        self._config = config
        self._epoch = epoch
        self._target = target
        self._ranks = LocalRanks(node=0, node_count=1, report=self._on_report)
        self._ranks.hold()  # a rank that has restored is held before the end of its first step
        self._start = LocalStart(welcome, self._ranks, self._on_report)
        self._outcome: asyncio.Future[Rehearsed] = asyncio.get_running_loop().create_future()

    async def run(self, *, timeout_s: float) -> Rehearsed:
        """Raises: ConfigError: the command cannot be started."""
        become_subreaper()
        job = Job(self._config.command, signals=self._config.signals, stdout=STDERR)
        server = RankServer(
            self._ranks, start=self._start, call=_refuse, ends=self, warn=log.warning
        )
        with tempfile.TemporaryDirectory(prefix="drainfsm-") as directory:
            path = Path(directory) / "drill"
            await server.listen(path)
            try:
                job.start({SOCKET_VARIABLE: str(path), EPOCH_VARIABLE: str(self._epoch)})
                return await self._await(job, timeout_s=timeout_s)
            finally:
                await job.kill()
                await server.close()
                await _the_rest()

    async def _await(self, job: Job, *, timeout_s: float) -> Rehearsed:
        watch = asyncio.ensure_future(self._watch(job))
        try:
            async with asyncio.timeout(timeout_s):
                return await self._outcome
        except TimeoutError:
            return Rehearsed(f"the command had not restored it after {timeout_s:g} s")
        finally:
            watch.cancel()

    async def _watch(self, job: Job) -> None:
        await job.wait()
        await asyncio.sleep(LAST_WORDS_S)
        if job.exit_code in (CANNOT_EXECUTE, NOT_FOUND) and self._ranks.expected_count is None:
            self._fail(ConfigError(f"cannot start {self._config.command[0]!r}: nothing drilled"))
        self._set(Rehearsed(f"the command ended with {job.exit_code} and had not restored it"))

    def _on_report(self, message: n.FromNode) -> None:
        match message:
            case n.NodeStarting():
                self._start.on_answer(n.StartRanks(restore=self._target, restart=0))
            case CheckpointRestored(restore_ms=restore_ms):
                detail = f"{len(self._ranks.ranks)} rank(s) of the job in {restore_ms} ms"
                self._set(Rehearsed(detail, restored=True))
            case RestoreRefused(rank=rank, error=error, reason=reason):
                self._set(Rehearsed(f"rank {rank}: {error}: {reason}"))
            case HealthyStepReached():
                self._set(Rehearsed("the command trained on without it: does it call restore()?"))
            case _:
                pass

    def _set(self, outcome: Rehearsed) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    def _fail(self, error: ConfigError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)

    def rank_began(self, rank: int, incarnation: str, pid: int) -> None: ...

    def rank_ended(self, rank: int, incarnation: str, exit_code: int | None) -> None: ...


async def _the_rest() -> None:
    """Connections notice that their ranks have gone."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=LAST_WORDS_S)


async def _refuse(call: m.FromCaller) -> m.NotifyAnswer:
    return m.NotifyAnswer(error="a drill of a restore takes no notices")
