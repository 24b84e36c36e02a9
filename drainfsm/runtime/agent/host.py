"""What only the agent of node 0 runs: the coordinator, its server, and the shipper of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from drainfsm.core.notice import Notice
from drainfsm.core.state import State
from drainfsm.errors import DrainfsmError
from drainfsm.log.shipper import Shipper
from drainfsm.runtime.agent.coordinator_link import LocalLink
from drainfsm.runtime.agent.host_machine import HostMachine
from drainfsm.runtime.agent.start import refusal_of
from drainfsm.runtime.clock import Clock, loop_ms
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt, claim_attempt
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.coordinator.node_server import NodeServer
from drainfsm.runtime.threads import Tasks, in_thread

CLOSE_MS_MAX = 2_000
AWAY_MS = 1_000
"""At the end, for a server that could not be reached so far."""

Interpret = Callable[[Notice], Awaitable[Notice | None]]


class Host:
    """Built by ``start``; the local agent joins through ``link`` like any other."""

    def __init__(
        self,
        config: RunConfig,
        clock: Clock,
        attempt: ClaimedAttempt,
        machine: HostMachine,
        node_server: NodeServer,
        *,
        interpret: Interpret,
        show: Callable[[State], None],
        warn: Callable[[str], None],
    ) -> None:
        self._config = config
        self._show = show
        self._attempt = attempt
        self._machine = machine
        self._warn = warn
        self._shipper: Shipper | None = None
        self._coordinator = Coordinator(
            attempt, config, clock, warn=warn, interpret=interpret, recorded=self._recorded
        )
        self._node_server = node_server
        self.link = LocalLink(self._coordinator, node_rank=config.node_rank)

    @classmethod
    async def start(
        cls,
        config: RunConfig,
        clock: Clock,
        tasks: Tasks,
        machine: HostMachine,
        *,
        check: Callable[[], Interpret],
        show: Callable[[State], None],
        warn: Callable[[str], None],
    ) -> Host:
        """Waits for the other nodes and claims the job; then the broker comes up beside it, and
        nothing waits for that.

        ``check``: what else can be known to be wrong; returns who says what a bare signal means.
        ``show``: shows how the job stands, after every decision.
        If the start fails, the other nodes are told.

        Raises:
            ConfigError: by ``check``, or the log is not durable; nothing was claimed.
            BrokerError: the log cannot be asked whether it is; nothing was claimed.
            StartRefusedError: a node has not come, or cannot run its part; nothing was claimed.
            StoreError, CheckpointError, LogError: the attempt could not be claimed.
            NodeRankTakenError: another coordinator has the address.
        """
        node_server = NodeServer(config, warn=warn)
        try:
            interpret = await _gather(config, node_server, machine, check)
            environment = machine.environment()
            attempt = await in_thread(
                "claim", lambda: claim_attempt(config, clock, warn=warn, environment=environment)
            )
        except DrainfsmError as error:
            await node_server.turn_away(refusal_of(error))
            raise
        except asyncio.CancelledError:
            await node_server.close()
            raise
        attempt = await _with_evidence(attempt, machine)
        host = cls(
            config,
            clock,
            attempt,
            machine,
            node_server,
            interpret=interpret,
            show=show,
            warn=warn,
        )
        node_server.admit(host._coordinator)
        machine.write_run_info(epoch=attempt.epoch, nats_url="")
        tasks.start(host._run())
        tasks.start(machine.give_signs_of_life(epoch=attempt.epoch))
        tasks.start(host._connect_log())
        return host

    async def _run(self) -> None:
        try:
            await self._coordinator.run()
        except Exception as error:
            self.link.fail(f"the coordinator failed: {error!r}")
            raise

    def _recorded(self, state: State) -> None:
        self._machine.recorded(state)
        if self._shipper is not None:
            self._shipper.poke()
        self._show(state)

    async def _connect_log(self) -> None:
        server = await self._machine.log_server(self._attempt.journal)
        if server is None:
            return
        shipper = self._machine.shipper(server)
        shipper.attach(self._attempt.journal)
        await shipper.start()
        self._shipper = shipper
        self._machine.write_run_info(epoch=self._attempt.epoch, nats_url=server.url)

    async def fenced(self, *, timeout_ms: int) -> bool:
        """A newer attempt has taken the job over, as far as the store says so in time."""
        return await self._coordinator.ask_fence(timeout_s=timeout_ms / 1_000)

    async def flush(self, *, timeout_ms: int) -> None:
        """Everything on record reaches the stream, or else the store, if it can in time. A stream
        that goes with this machine does not do by itself."""
        give_up_ms, shipper = loop_ms() + timeout_ms, self._shipper
        shipped, local = False, self._machine.log_leaves_with_it
        if shipper is not None:
            first_ms = timeout_ms // 2 if shipper.reachable else min(timeout_ms // 2, AWAY_MS)
            shipped = await shipper.flush(timeout_ms=first_ms)
            if shipped and not local:
                return
        kept = await self._keep(timeout_ms=give_up_ms - loop_ms())
        if shipped:
            if not kept:
                self._warn(
                    f"the log is on this machine only, in {self._attempt.journal.path}: the store "
                    "did not take it in time"
                )
            return
        rest_ms = give_up_ms - loop_ms()
        worth = shipper is not None and (shipper.known or not kept)
        if shipper is not None and worth and await shipper.flush(timeout_ms=rest_ms):
            return
        where = f"the journal {self._attempt.journal.path}"
        where += ", and under log/ in the store" if kept else ""
        self._warn(
            f"part of the log did not reach the stream in time; it is in {where}. The next attempt "
            "on this machine ships it, or `drainfsm import`"
        )

    async def _keep(self, *, timeout_ms: int) -> bool:
        """The journal is beside the checkpoints: this machine's disk may go with it."""
        records = list(self._attempt.journal.records)
        try:
            async with asyncio.timeout(max(0, timeout_ms) / 1_000):
                await in_thread("keep-log", lambda: self._attempt.publisher.keep(records))
        except (TimeoutError, DrainfsmError, OSError):
            return False
        return True

    async def close(self, *, timeout_ms: int = CLOSE_MS_MAX) -> None:
        """Usually some milliseconds; bounded for a server that hangs. The journal has everything,
        and a server that is left behind dies with this process: leaving beats shipping."""
        give_up_ms = loop_ms() + min(timeout_ms, CLOSE_MS_MAX)
        await self._node_server.close()
        if self._shipper is not None:
            await self._shipper.close(timeout_ms=(give_up_ms - loop_ms()) // 4)
        await self._machine.stop_server(timeout_s=(give_up_ms - loop_ms()) / 1_000)
        self._attempt.journal.close()


async def _gather(
    config: RunConfig,
    node_server: NodeServer,
    machine: HostMachine,
    check: Callable[[], Interpret],
) -> Interpret:
    """Nothing is wrong on this node, and every other one is here, and has found nothing either."""
    if config.nnodes == 1:
        interpret = check()
        await machine.check_log()
        return interpret
    await node_server.listen(machine.bind())
    interpret = check()
    await machine.check_log()
    await node_server.gather()
    return interpret


async def _with_evidence(attempt: ClaimedAttempt, machine: HostMachine) -> ClaimedAttempt:
    """A replacement on another machine finds in the stream what the journals here lack."""
    start = attempt.start
    if start.samples or attempt.epoch == 1:
        return attempt
    found = await machine.evidence(before_epoch=attempt.epoch)
    last_seen = start.lost_last_seen_unix_ms
    if start.lost_epoch is not None and last_seen is None:
        last_seen = found.last_seen_unix_ms
    start = replace(start, samples=found.samples, lost_last_seen_unix_ms=last_seen)
    return replace(attempt, start=start)
