"""What only the agent of node 0 runs: the coordinator, its server, the broker and the shipper."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from drainfsm.core.notice import Notice
from drainfsm.errors import BrokerError, DrainfsmError
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.shipper import Shipper
from drainfsm.runtime import liveness, paths
from drainfsm.runtime.agent.coordinator_link import LocalLink
from drainfsm.runtime.agent.start import turn_away
from drainfsm.runtime.clock import Clock, loop_ms
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator import evidence
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt, claim_attempt
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.coordinator.node_server import NodeServer, bind
from drainfsm.runtime.threads import Tasks, in_thread

CLOSE_MS_MAX = 2_000
AWAY_MS = 1_000
"""At the end, for a server that could not be reached so far."""


class Host:
    """Built by ``start``; the local agent joins through ``link`` like any other."""

    def __init__(
        self,
        config: RunConfig,
        attempt: ClaimedAttempt,
        coordinator: Coordinator,
        node_server: NodeServer | None,
        warn: Callable[[str], None],
    ) -> None:
        self._config = config
        self._attempt = attempt
        self._coordinator = coordinator
        self._node_server = node_server
        self._warn = warn
        self._server: EmbeddedServer | None = None
        self._shipper: Shipper | None = None
        self.link = LocalLink(coordinator, node_rank=config.node_rank)
        self.process_ids: set[int] = set()
        """Of processes that are not the job's."""

        self.on_server_started: Callable[[int], None] = self.process_ids.add
        self.on_failed: Callable[[str], None] = warn

    @classmethod
    async def start(
        cls,
        config: RunConfig,
        clock: Clock,
        tasks: Tasks,
        *,
        check: Callable[[], object],
        warn: Callable[[str], None],
    ) -> Host:
        """Claims the job; then the broker comes up beside it, and nothing waits for it.

        ``check``: what else can be known to be wrong. Of a start that comes to nothing the other
        nodes are told.

        Raises:
            ConfigError: by ``check``; nothing was claimed.
            StoreError, CheckpointError, LogError: the attempt could not be claimed.
            NodeRankTakenError: another coordinator has the address.
        """
        bound = bind(config) if config.nnodes > 1 else None
        try:
            check()
            attempt = await in_thread("claim", lambda: claim_attempt(config, clock, warn=warn))
        except DrainfsmError as error:
            if bound is not None:
                await turn_away(bound, config, error, warn=warn)
            raise
        attempt = await _with_evidence(attempt, config)
        coordinator = Coordinator(attempt, config, clock, warn=warn)
        node_server = None
        if bound is not None:
            node_server = NodeServer(coordinator, config, warn=warn)
            await node_server.listen(bound)
        host = cls(config, attempt, coordinator, node_server, warn)
        host._write_info("")
        tasks.start(host._run())
        tasks.start(host._live())
        tasks.start(host._connect_log())
        return host

    async def _run(self) -> None:
        try:
            await self._coordinator.run()
        except Exception as error:
            self.on_failed(f"the coordinator failed: {error!r}")
            raise

    async def _live(self) -> None:
        config = self._config
        await liveness.live(
            config.state_dir,
            job=config.job,
            epoch=self._attempt.epoch,
            heartbeat_s=config.heartbeat_s,
        )

    async def _connect_log(self) -> None:
        url = self._config.nats or await self._start_server()
        if not url:
            return
        shipper = Shipper(
            url=url,
            state_dir=self._config.state_dir,
            job_id=self._config.job,
            on_error=lambda text: self._warn(f"log: {text}"),
            sync_always=True if self._server is not None else None,
        )
        shipper.attach(self._attempt.journal)
        await shipper.start()
        self._shipper = shipper
        self._coordinator.follower = shipper
        self._write_info(url)

    async def _start_server(self) -> str:
        data_dir = self._config.state_dir / self._config.job / "nats"
        try:
            self._server = await in_thread("nats", lambda: EmbeddedServer.start(data_dir))
        except (BrokerError, OSError) as error:
            self._warn(
                f"no NATS server: {error}. The job runs and drains all the same; its log stays "
                f"in the journal {self._attempt.journal.path} until a server can be reached"
            )
            return ""
        self.on_server_started(self._server.pid)
        return self._server.url

    def _write_info(self, nats_url: str) -> None:
        info = paths.RunInfo(
            job_id=self._config.job,
            epoch=self._attempt.epoch,
            pid=os.getpid(),
            nats_url=nats_url,
            coordinator=self._config.coordinator,
        )
        try:
            paths.write_run_info(self._config.state_dir, info)
        except OSError as error:
            self._warn(
                f"cannot write {paths.run_info_path(self._config.state_dir, info.job_id)}: {error}"
            )

    def interpret_with(self, interpret: Callable[[Notice], Awaitable[Notice | None]]) -> None:
        """Who says what a bare signal means."""
        self._coordinator.interpret = interpret

    async def fenced(self, *, timeout_ms: int) -> bool:
        """A newer attempt has taken the job over, as far as the store says so in time."""
        return await self._coordinator.ask_fence(timeout_s=timeout_ms / 1_000)

    async def flush(self, *, timeout_ms: int) -> None:
        """Everything on record reaches the stream, if it can in time."""
        shipper = self._shipper
        if shipper is None:
            return
        if not shipper.reachable:
            timeout_ms = min(timeout_ms, AWAY_MS)
        if not await shipper.flush(timeout_ms=timeout_ms):
            self._warn(
                f"part of the log did not reach the stream in time; it is in the journal "
                f"{self._attempt.journal.path}, and the next attempt ships it"
            )

    async def close(self, *, timeout_ms: int = CLOSE_MS_MAX) -> None:
        """Usually some milliseconds; bounded for a server that hangs. The journal has everything,
        and a server that is left behind dies with this process: leaving beats shipping."""
        give_up_ms = loop_ms() + min(timeout_ms, CLOSE_MS_MAX)
        if self._node_server is not None:
            await self._node_server.close()
        if self._shipper is not None:
            await self._shipper.close(timeout_ms=(give_up_ms - loop_ms()) // 4)
        if self._server is not None:
            await self._stop(self._server, timeout_s=(give_up_ms - loop_ms()) / 1_000)
        self._attempt.journal.close()

    async def _stop(self, server: EmbeddedServer, *, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                asked_s = timeout_s * 3 / 4  # then it is killed
                await in_thread("nats-stop", lambda: server.stop(timeout_s=asked_s))


async def _with_evidence(attempt: ClaimedAttempt, config: RunConfig) -> ClaimedAttempt:
    """A replacement on another machine finds in the stream what the journals here lack."""
    start = attempt.start
    if start.samples or attempt.epoch == 1 or not config.nats:
        return attempt
    found = await evidence.collect_from_stream(
        config.nats, job_id=config.job, before_epoch=attempt.epoch
    )
    last_seen = start.lost_last_seen_unix_ms
    if start.lost_epoch is not None and last_seen is None:
        last_seen = found.last_seen_unix_ms
    start = replace(start, samples=found.samples, lost_last_seen_unix_ms=last_seen)
    return replace(attempt, start=start)
