"""The coordinator's TCP server: agents of the other nodes join here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.errors import ConfigError, NodeRankTakenError, ProtocolError, StartRefusedError
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.wire import handshake
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire.frames import HANDSHAKE_BYTES_MAX, Codec
from drainfsm.runtime.wire.streams import read_message, write_message

HANDSHAKE_S = 10.0
STRANGERS_MAX = 64
"""Connections that have not shown the job token, besides one for each node."""

BACKLOG_MIN = 128
"""Connections that the kernel holds for us: all nodes of a job may come in the same moment, and one
that finds no room comes again after seconds."""

TELL_S = 10.0
"""Whoever has not come by then is named."""

LOGGED_MAX = 16
NAMED_MAX = 8
TURN_AWAY_S = 30.0
"""Agents of the other nodes may start this much later than a node 0 that refuses to start."""


def bind(config: RunConfig) -> socket.socket:
    """The coordinator's address, taken before the job is claimed: two agents of node rank 0 must
    not fence each other by mistake.

    Raises:
        NodeRankTakenError: the address is in use, or is not this node's.
    """
    host, _, port = config.coordinator.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        return socket.create_server(found[0][4][:2], family=found[0][0], reuse_port=False)
    except OSError as error:
        raise NodeRankTakenError(
            f"cannot listen at {config.coordinator}: {error.strerror or error}. Does another agent "
            "with node rank 0 run there? --coordinator must name the node of node rank 0"
        ) from error


class Proven(NamedTuple):
    """An agent of this job, and our answer to its proof."""

    claim: n.Proof
    mac: bytes


class NodeServer:
    """Takes in the agents of the other nodes; lets them begin, or tells them that nothing begins.

    The order: ``listen``, ``gather``, and once the job is claimed ``admit``, else ``turn_away``.
    """

    def __init__(self, config: RunConfig, *, warn: Callable[[str], None]) -> None:
        self._config = config
        self._warn = warn
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Connections before their handshake is done, oldest first."""

        self._strangers_max = STRANGERS_MAX + config.nnodes
        self._told_count = 0
        self._outcome: asyncio.Future[Coordinator | n.Refusal] | None = None
        """Of the start."""

        self._waiting: dict[asyncio.Future[None], None] = {}
        """A future of each connection that waits for it."""

        self._gathered: set[int] = set()
        """Nodes that wait for it."""

        self._problem: StartRefusedError | None = None
        """A refusal that one of them has reported."""

        self._refused: set[int] = set()
        """Nodes that were told of a refusal."""

        self._changed = asyncio.Event()
        """One of these."""

    @property
    def _coordinator(self) -> Coordinator | None:
        outcome = self._outcome
        if outcome is None or not outcome.done():
            return None
        result = outcome.result()
        return None if isinstance(result, n.Refusal) else result

    async def listen(self, bound: socket.socket) -> None:
        """Raises: ConfigError: a TLS file cannot be read."""
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            self._server = await asyncio.start_server(
                self._connected,
                sock=bound,
                ssl=handshake.server_tls(self._config),
                backlog=max(BACKLOG_MIN, self._config.nnodes),
            )
        except ConfigError:
            bound.close()
            raise

    async def gather(self) -> None:
        """Until every other node is here, for ``attach_s`` at most.

        Raises:
            StartRefusedError: one is not, or cannot run its part; names it.
        """
        limit_s = self._config.attach_s
        first_s = min(TELL_S, limit_s)
        if not await self._within(first_s, self._all_here) and limit_s > first_s:
            self._warn(f"waiting for {self._missing()} before the job is claimed")
            await self._within(limit_s - first_s, self._all_here)
        if self._problem is not None:
            raise self._problem
        if not self._all_here():
            raise StartRefusedError(
                f"{self._missing()} did not come within {limit_s:g} s: does its agent run, and "
                f"reach {self._config.coordinator}? Nothing was claimed",
                exit_code=EX_TEMPFAIL,
            )

    def _all_here(self) -> bool:
        """Or one of them cannot run its part."""
        return self._problem is not None or len(self._gathered) == self._config.nnodes - 1

    def _missing(self) -> str:
        missing = [node for node in range(1, self._config.nnodes) if node not in self._gathered]
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        return f"node {', '.join(map(str, missing[:NAMED_MAX]))}{more}"

    def admit(self, coordinator: Coordinator) -> None:
        """The job is claimed: waiting nodes join it, and later ones too."""
        self._decide(coordinator)

    async def turn_away(self, refusal: n.Refusal, *, timeout_s: float = TURN_AWAY_S) -> None:
        """Tell the other nodes why nothing begins, or they would wait for it, and hold what they
        have, for minutes. Until all were told, or the time is up."""
        if self._server is not None:
            self._warn(f"{refusal.reason}; the other nodes are told that the job does not start")
            self._decide(refusal)
            await self._within(timeout_s, lambda: len(self._refused) >= self._config.nnodes - 1)
            await self.close()

    async def close(self) -> None:
        """What was sent is delivered, if the peers read it within a moment."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    def _decide(self, outcome: Coordinator | n.Refusal) -> None:
        if self._outcome is not None:
            self._outcome.set_result(outcome)
            for decided in self._waiting:
                decided.set_result(None)

    async def _within(self, seconds: float, reached: Callable[[], bool]) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
        return reached()

    # --- one connection -------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        self._take_in(writer)
        node: int | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                proven = await self._prove(reader, writer)
            self._strangers.pop(writer, None)
            if proven is not None:
                node = await self._let_in(proven, reader, writer)
            if node is not None:
                await self._serve(node, reader)
        except TimeoutError:
            pass
        except ProtocolError as error:
            self._tell(f"{writer.get_extra_info('peername')}: {error}")
        finally:
            self._strangers.pop(writer, None)
            self._writers.pop(writer, None)
            writer.close()
            if node is not None and self._coordinator is not None:
                self._coordinator.node_gone(node, f"the connection of node {node} ended")

    def _take_in(self, writer: asyncio.StreamWriter) -> None:
        """Whoever can reach the port may connect as often as it likes: the oldest of too many is
        dropped. Agents of the job are through in a moment."""
        self._strangers[writer] = None
        if len(self._strangers) > self._strangers_max:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
            self._tell(
                f"{self._strangers_max} connections wait to be let in: the oldest is dropped"
            )

    def _tell(self, text: str) -> None:
        """Log it ever more rarely, so that strangers cannot fill the log."""
        self._told_count += 1
        count = self._told_count
        if count <= LOGGED_MAX:
            self._warn(text)
        elif count & (count - 1) == 0:
            self._warn(f"{text} (the {count}th message of this kind)")

    async def _serve(self, node: int, reader: asyncio.StreamReader) -> None:
        codec: Codec[n.FromNode] = Codec(n.FromNode)
        while (message := await read_message(reader, codec)) is not None:
            if self._coordinator is not None:
                self._coordinator.on_node(node, message)

    async def _prove(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Proven | None:
        """None: it has gone, or does not belong."""
        own = handshake.nonce()
        write_message(writer, n.Challenge(protocol_version=n.PROTOCOL_VERSION, nonce=own))
        claim = await read_message(reader, Codec[n.Proof](n.Proof), bytes_max=HANDSHAKE_BYTES_MAX)
        if claim is None:
            return None
        claims = handshake.claims_of(claim)
        refusal = self._refusal(claim, own, claims)
        if refusal is not None:
            self._tell(f"an agent was refused: {refusal.reason}")
            await _send(writer, refusal)
            return None
        mac = handshake.proof(
            self._config.token, by="coordinator", theirs=claim.nonce, own=own, claims=claims
        )
        return Proven(claim, mac)

    async def _let_in(
        self, proven: Proven, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int | None:
        """None: nothing begins, or not with it."""
        claim = proven.claim
        node = claim.node_rank
        if claim.problem and self._problem is None:
            self._problem = StartRefusedError(
                f"node {node}: {claim.problem}", exit_code=claim.exit_code
            )
        self._gathered.add(node)
        self._changed.set()
        try:
            outcome = await self._wait_for_outcome(reader, writer)
        finally:
            self._gathered.discard(node)
        if isinstance(outcome, n.Refusal):
            await _send(writer, outcome)
            self._refused.add(node)
            self._changed.set()
        if not isinstance(outcome, Coordinator) or claim.problem:
            return None  # where the attempt has begun already, nobody waits for that node
        welcome = outcome.join(node, lambda message: write_message(writer, message))
        write_message(writer, replace(welcome, mac=proven.mac))
        outcome.brief(node)
        return node

    async def _wait_for_outcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Coordinator | n.Refusal | None:
        """None: the node has gone."""
        outcome = self._outcome
        if outcome is None:
            raise AssertionError("nobody comes before listen")
        gone = asyncio.ensure_future(reader.read(1))  # it says nothing before it is welcome
        # A future of its own: ``wait`` takes its callback back every time, and of one future for
        # thousands of nodes that means going through the callbacks of all.
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[decided] = None
        waited_for: list[asyncio.Future[Any]] = [decided, gone]
        try:
            while not outcome.done() and not gone.done():
                write_message(writer, n.Gathering())
                await asyncio.wait(
                    waited_for,
                    timeout=self._config.heartbeat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            return None if gone.done() else outcome.result()
        finally:
            del self._waiting[decided]
            gone.cancel()
            await asyncio.wait({gone})

    def _refusal(self, claim: n.Proof, own: bytes, claims: str) -> n.Refusal | None:
        expected = handshake.proof(
            self._config.token, by="agent", theirs=own, own=claim.nonce, claims=claims
        )
        if not handshake.verify_mac(claim.mac, expected):
            return n.Refusal(
                error="AuthenticationError",
                reason="wrong job token: give the same --token on every node",
            )
        if claim.job_id != self._config.job or claim.node_count != self._config.nnodes:
            return n.Refusal(
                error="ProtocolError",
                reason=f"this is job {self._config.job} of {self._config.nnodes} nodes, not "
                f"{claim.job_id} of {claim.node_count}",
            )
        node, coordinator = claim.node_rank, self._coordinator
        taken = node in self._gathered or (coordinator is not None and coordinator.has_joined(node))
        if not 0 < node < self._config.nnodes or taken:
            return n.Refusal(
                error="NodeRankTakenError",
                reason=f"node rank {node} is taken by another agent of job {claim.job_id}: "
                "give each agent its own --node-rank",
            )
        return None


async def _send(writer: asyncio.StreamWriter, message: n.Joining) -> None:
    write_message(writer, message)
    await writer.drain()
