"""An agent's way to the coordinator: inside the process on node 0, else over TCP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from drainfsm.core.text import printable
from drainfsm.errors import (
    AuthenticationError,
    ConfigError,
    CoordinatorLostError,
    NodeRankTakenError,
    ProtocolError,
    RuntimeFailure,
    StartRefusedError,
)
from drainfsm.runtime.clock import RunningTime, loop_ms
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.wire import handshake
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire.frames import HANDSHAKE_BYTES_MAX, Codec
from drainfsm.runtime.wire.streams import read_message, write_message

RETRY_S = 0.25
"""Between tries to reach a coordinator that is not up yet."""

HANDSHAKE_S = 10.0
DECLINE_S = 30.0
"""Node 0 may start so much later than a node that cannot run its part."""

OnOrder = Callable[[n.ToNode], None]


class CoordinatorLink(Protocol):
    welcome: n.Welcome

    def send(self, message: n.FromNode) -> None: ...

    async def run(self, on_order: OnOrder) -> None:
        """Delivers orders until cancelled.

        Raises:
            CoordinatorLostError: the coordinator went away.
        """

    def close(self) -> None: ...


class LocalLink:
    """To the coordinator in the same process. Messages are handed over in order, never inside
    the call that sends them."""

    def __init__(self, coordinator: Coordinator, *, node_rank: int) -> None:
        self._coordinator = coordinator
        self._node_rank = node_rank
        self._orders: asyncio.Queue[n.ToNode | CoordinatorLostError] = asyncio.Queue()
        self.welcome = coordinator.join(node_rank, self._orders.put_nowait)
        coordinator.brief(node_rank)

    def send(self, message: n.FromNode) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(self._coordinator.on_node, self._node_rank, message)

    async def run(self, on_order: OnOrder) -> None:
        while True:
            order = await self._orders.get()
            if isinstance(order, CoordinatorLostError):
                raise order
            on_order(order)

    def fail(self, reason: str) -> None:
        """The coordinator has ended by a fault of its own."""
        self._orders.put_nowait(CoordinatorLostError(reason))

    def close(self) -> None:
        pass


class TcpLink:
    def __init__(
        self,
        welcome: n.Welcome,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        config: RunConfig,
    ) -> None:
        self.welcome = welcome
        self._reader = reader
        self._writer = writer
        self._config = config
        self._time = RunningTime(pause_ms=round(2_000 * config.heartbeat_s))
        self._heard_ms = self._time.now_ms()

    def send(self, message: n.FromNode) -> None:
        write_message(self._writer, message)

    async def run(self, on_order: OnOrder) -> None:
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            await self._read(on_order)
        except ProtocolError as error:
            raise CoordinatorLostError(f"{error}") from error
        finally:
            beat.cancel()

    async def _read(self, on_order: OnOrder) -> None:
        codec: Codec[n.ToNode] = Codec(n.ToNode)
        while (order := await read_message(self._reader, codec)) is not None:
            self._heard_ms = self._time.now_ms()
            on_order(order)
        raise CoordinatorLostError("the coordinator closed the connection")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            self.send(n.Heartbeat())
            if self._time.now_ms() - self._heard_ms > self._config.silence_s * 1_000:
                self._writer.transport.abort()  # the reader sees the end, and says so

    def close(self) -> None:
        self._writer.close()


async def join(config: RunConfig, *, warn: Callable[[str], None]) -> TcpLink:
    """Reach the coordinator, show the token, and be let in. Waits for one that is not up yet, and
    until it has every node and has claimed the job.

    Raises:
        AuthenticationError: the coordinator has another job token.
        NodeRankTakenError: another agent has this node rank, still after ``attach_s``.
        ProtocolError: what answers there is not a coordinator of this job and version.
        StartRefusedError: the attempt is not started.
        CoordinatorLostError: nothing answered for ``attach_s``.
    """
    began_ms, warned = loop_ms(), False
    while True:
        try:
            if (link := await _try_to_join(config, refusal=None)) is not None:
                return link
            trouble = "it closed the connection"  # an attempt that is just ending
        except NodeRankTakenError as error:
            if loop_ms() - began_ms > config.attach_s * 1_000:
                raise
            trouble = str(error)  # the present holder may be gone by the next attempt
        except (OSError, TimeoutError) as error:
            trouble = str(error) or "no answer"
        if loop_ms() - began_ms > config.attach_s * 1_000:
            raise CoordinatorLostError(
                f"no coordinator at {config.coordinator} within {config.attach_s:g} s "
                f"({trouble}): is the agent of node 0 running, and can it be reached?"
            )
        if not warned:
            warn(f"waiting for the coordinator at {config.coordinator} ({trouble})")
            warned = True
        await asyncio.sleep(RETRY_S)


async def decline(config: RunConfig, refusal: n.Refusal) -> None:
    """Tell node 0 that this node cannot run its part, for ``DECLINE_S`` at most: nothing is to be
    claimed, and nobody is to wait for it."""
    with contextlib.suppress(TimeoutError, RuntimeFailure, ConfigError):
        async with asyncio.timeout(DECLINE_S):
            while True:
                with contextlib.suppress(OSError, TimeoutError, NodeRankTakenError):
                    await _try_to_join(config, refusal=refusal)
                    return
                await asyncio.sleep(RETRY_S)


async def _try_to_join(config: RunConfig, *, refusal: n.Refusal | None) -> TcpLink | None:
    """None: it closed the connection before we were in. ``refusal``: of this node."""
    host, _, port = config.coordinator.rpartition(":")
    async with asyncio.timeout(HANDSHAKE_S):
        reader, writer = await asyncio.open_connection(
            host.strip("[]"), int(port), ssl=handshake.client_tls(config)
        )
    welcome = None
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            claimed = await _prove(config, reader, writer, refusal)
        if claimed is not None:
            async with asyncio.timeout(config.attach_s + HANDSHAKE_S):  # node 0 gives up before
                welcome = await _welcome(config, reader, *claimed)
    finally:
        if welcome is None:
            writer.close()
    return None if welcome is None else TcpLink(welcome, reader, writer, config=config)


async def _prove(
    config: RunConfig,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    refusal: n.Refusal | None,
) -> tuple[n.Proof, bytes] | None:
    """What was claimed, and the coordinator's nonce."""
    codec: Codec[n.Joining] = Codec(n.Joining)
    challenge = await read_message(reader, codec, bytes_max=HANDSHAKE_BYTES_MAX)
    if challenge is None:
        return None
    if not isinstance(challenge, n.Challenge):
        raise _refused(challenge)
    if challenge.protocol_version != n.PROTOCOL_VERSION:
        raise ProtocolError(
            f"the coordinator speaks protocol {challenge.protocol_version}, this agent "
            f"{n.PROTOCOL_VERSION}: run one version of drainfsm on all nodes"
        )
    claim = n.Proof(
        job_id=config.job,
        node_rank=config.node_rank,
        node_count=config.nnodes,
        nonce=handshake.nonce(),
        mac=b"",
        problem="" if refusal is None else printable(refusal.reason),
        exit_code=0 if refusal is None else refusal.exit_code,
    )
    mac = handshake.proof(
        config.token,
        by="agent",
        theirs=challenge.nonce,
        own=claim.nonce,
        claims=handshake.claims_of(claim),
    )
    write_message(writer, replace(claim, mac=mac))
    return claim, challenge.nonce


async def _welcome(
    config: RunConfig, reader: asyncio.StreamReader, claim: n.Proof, theirs: bytes
) -> n.Welcome | None:
    """Once every node is there, and the job is claimed."""
    codec: Codec[n.Joining] = Codec(n.Joining)
    answer: n.Joining | None = n.Gathering()
    while isinstance(answer, n.Gathering):
        async with asyncio.timeout(max(HANDSHAKE_S, config.silence_s)):
            answer = await read_message(reader, codec)
    if answer is None:
        return None
    if not isinstance(answer, n.Welcome):
        raise _refused(answer)
    expected = handshake.proof(
        config.token,
        by="coordinator",
        theirs=claim.nonce,
        own=theirs,
        claims=handshake.claims_of(claim),
    )
    if not handshake.verify_mac(answer.mac, expected):
        raise AuthenticationError(f"what answers at {config.coordinator} has another job token")
    return answer


def _refused(answer: n.Joining) -> RuntimeFailure:
    if isinstance(answer, n.Refusal):
        if answer.error == StartRefusedError.__name__:
            return StartRefusedError(answer.reason, exit_code=answer.exit_code)
        known = {
            "AuthenticationError": AuthenticationError,
            "NodeRankTakenError": NodeRankTakenError,
        }
        return known.get(answer.error, ProtocolError)(answer.reason)
    return ProtocolError(f"the coordinator sent a {type(answer).__name__} out of turn")
