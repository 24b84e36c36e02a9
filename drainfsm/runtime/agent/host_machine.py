"""What the coordinator needs of the machine of node 0. The simulator has another one."""

from __future__ import annotations

import contextlib
import os
import socket
from asyncio import timeout
from collections.abc import Callable

from drainfsm.core.records import subjects_of
from drainfsm.core.state import State
from drainfsm.errors import BrokerError, ConfigError
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.log.journal import Journal
from drainfsm.log.server import NatsServer
from drainfsm.log.shipper import Shipper
from drainfsm.log.stream import STREAM
from drainfsm.runtime import liveness, paths
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator import evidence
from drainfsm.runtime.coordinator.attempt import AttemptEnvironment, nats_server
from drainfsm.runtime.coordinator.node_server import bind
from drainfsm.runtime.threads import in_thread
from drainfsm.store import open_store

CHECK_LOG_S = 10.0


class HostMachine:
    """Address, store, state directory, broker."""

    def __init__(self, config: RunConfig, *, others: set[int], warn: Callable[[str], None]) -> None:
        """``others``: gets the ids of processes that are not the job's."""
        self._config = config
        self._others = others
        self._warn = warn
        self._server: EmbeddedServer | None = None

    def bind(self) -> socket.socket:
        """Raises: NodeRankTakenError: another coordinator has the address."""
        return bind(self._config)

    def environment(self) -> AttemptEnvironment:
        """Where the attempt is claimed."""
        return AttemptEnvironment(self._config)

    async def evidence(self, *, before_epoch: int) -> evidence.PastAttempts:
        """What the shared log, or else the store, knows of earlier attempts, where this machine
        has no journals."""
        if not self._config.nats:
            return await evidence.collect_from_store(
                open_store(self._config.store), job_id=self._config.job, before_epoch=before_epoch
            )
        return await evidence.collect_from_stream(
            nats_server(self._config), job_id=self._config.job, before_epoch=before_epoch
        )

    def recorded(self, state: State) -> None:
        """A decision is on record, and has led to this state."""

    # --- for observers of a running attempt ----------------------------------------------------

    async def give_signs_of_life(self, *, epoch: int) -> None:
        """Until cancelled."""
        config = self._config
        await liveness.live(
            config.state_dir, job=config.job, epoch=epoch, heartbeat_s=config.heartbeat_s
        )

    def write_run_info(self, *, epoch: int, nats_url: str) -> None:
        server = self._server if nats_url else None
        info = paths.RunInfo(
            job_id=self._config.job,
            epoch=epoch,
            pid=os.getpid(),
            nats_url=nats_url,
            coordinator=self._config.coordinator,
            websocket_url="" if server is None else server.websocket_url,
            stream=STREAM if nats_url else "",
            subjects=subjects_of(self._config.job) if nats_url else "",
            ends_with_attempt=server is not None,
        )
        try:
            paths.write_run_info(self._config.state_dir, info)
        except OSError as error:
            path = paths.run_info_path(self._config.state_dir, info.job_id)
            self._warn(f"cannot write {path}: {error}")

    # --- the shared log -------------------------------------------------------------------------

    async def check_log(self) -> None:
        """Before the claim, where the log must outlive power cuts.

        Raises:
            ConfigError: the server may lose what it has acknowledged.
            BrokerError: it cannot be asked.
        """
        if not self._config.require_durable_log:
            return
        connection = await connect(nats_server(self._config), timeout_s=CHECK_LOG_S)
        try:
            await connection.ensure_stream()
            risks = await connection.risks()
        finally:
            await connection.close()
        if risks:
            raise ConfigError(f"require_durable_log: {'; '.join(risks)}")

    async def log_server(self, journal: Journal) -> NatsServer | None:
        """The configured NATS server, else one that is started here; None: there is none."""
        if self._config.nats:
            return nats_server(self._config)
        data_dir = self._config.state_dir / self._config.job / "nats"
        try:
            self._server = await in_thread(
                "nats", lambda: EmbeddedServer.start(data_dir, began=self._others.add)
            )
        except (BrokerError, OSError) as error:
            self._warn(
                f"no NATS server: {error}. The job runs and drains nevertheless; its log stays "
                f"in the journal {journal.path} until a server can be reached"
            )
            return None
        return NatsServer(url=self._server.url)

    @property
    def log_leaves_with_it(self) -> bool:
        """The shared log is on this machine's disk, which may go when the job has left."""
        return self._server is not None

    def shipper(self, server: NatsServer) -> Shipper:
        """Not yet started."""
        return Shipper(
            server=server,
            state_dir=self._config.state_dir,
            job_id=self._config.job,
            on_error=lambda text: self._warn(f"log: {text}"),
            sync_always=True if self._server is not None else None,
        )

    async def stop_server(self, *, timeout_s: float) -> None:
        """Bounded, for a server that hangs: left behind, it dies with this process."""
        server = self._server
        if server is None:
            return
        with contextlib.suppress(TimeoutError):
            async with timeout(timeout_s):
                asked_s = timeout_s * 3 / 4  # then it is killed
                await in_thread("nats-stop", lambda: server.stop(timeout_s=asked_s))
