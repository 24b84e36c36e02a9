"""The coordinator's TCP server: agents of the other nodes join here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from msgspec.structs import replace

from drainfsm.errors import NodeRankTakenError, ProtocolError
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.wire import handshake
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire.frames import HANDSHAKE_BYTES_MAX, Codec
from drainfsm.runtime.wire.streams import read_message, write_message

HANDSHAKE_S = 10.0
STRANGERS_MAX = 64
"""Connections that have not shown the job token, besides one for each node."""

TOLD_MAX = 16
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


class NodeServer:
    def __init__(
        self, coordinator: Coordinator | None, config: RunConfig, *, warn: Callable[[str], None]
    ) -> None:
        """``coordinator``: None where nobody is let in."""
        self._admitting = coordinator
        self._config = config
        self._warn = warn
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """Connections before their handshake is done, oldest first."""

        self._strangers_max = STRANGERS_MAX + config.nnodes
        self._told_count = 0

    @property
    def _coordinator(self) -> Coordinator:
        if self._admitting is None:
            raise AssertionError("nobody is let in")
        return self._admitting

    async def listen(self, bound: socket.socket) -> None:
        self._server = await asyncio.start_server(
            self._connected, sock=bound, ssl=handshake.server_tls(self._config)
        )

    async def close(self) -> None:
        """What was sent is delivered, if the peers read it within a moment."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._take_in(writer)
        node: int | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                node = await self._let_in(reader, writer)
            self._strangers.pop(writer, None)
            if node is not None:
                await self._serve(node, reader)
        except TimeoutError:
            pass
        except ProtocolError as error:
            self._tell(f"{writer.get_extra_info('peername')}: {error}")
        finally:
            self._strangers.pop(writer, None)
            self._writers.discard(writer)
            writer.close()
            if node is not None:
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
        if count <= TOLD_MAX:
            self._warn(text)
        elif count & (count - 1) == 0:
            self._warn(f"{text} (the {count}th message of this kind)")

    async def _serve(self, node: int, reader: asyncio.StreamReader) -> None:
        codec: Codec[n.FromNode] = Codec(n.FromNode)
        while (message := await read_message(reader, codec)) is not None:
            self._coordinator.on_node(node, message)

    async def _let_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int | None:
        own = handshake.nonce()
        write_message(writer, n.Challenge(protocol_version=n.PROTOCOL_VERSION, nonce=own))
        claim = await read_message(reader, Codec[n.Proof](n.Proof), bytes_max=HANDSHAKE_BYTES_MAX)
        if claim is None:
            return None
        claims = f"{claim.job_id}/{claim.node_rank}/{claim.node_count}"
        refusal = self._refusal(claim, own, claims)
        if refusal is not None:
            self._tell(f"an agent was refused: {refusal.reason}")
            write_message(writer, refusal)
            await writer.drain()
            return None
        node = claim.node_rank
        mac = handshake.proof(
            self._config.token, by="coordinator", theirs=claim.nonce, own=own, claims=claims
        )
        welcome = self._coordinator.join(node, lambda message: write_message(writer, message))
        write_message(writer, replace(welcome, mac=mac))
        self._coordinator.brief(node)
        return node

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
        return self._taken(claim)

    def _taken(self, claim: n.Proof) -> n.Refusal | None:
        node = claim.node_rank
        if not 0 < node < self._config.nnodes or self._coordinator.has_joined(node):
            return n.Refusal(
                error="NodeRankTakenError",
                reason=f"node rank {node} is taken by another agent of job {claim.job_id}: "
                "give each agent its own --node-rank",
            )
        return None


class TurningAway(NodeServer):
    """Stands in for a coordinator that does not start: tells the other nodes why. Otherwise they
    would wait for it for minutes, and keep their machines busy."""

    def __init__(
        self, refusal: n.Refusal, config: RunConfig, *, warn: Callable[[str], None]
    ) -> None:
        super().__init__(None, config, warn=warn)
        self._reason = refusal
        self._told: set[int] = set()
        self._everybody_told = asyncio.Event()

    def _taken(self, claim: n.Proof) -> n.Refusal:
        self._told.add(claim.node_rank)
        if len(self._told) >= self._config.nnodes - 1:
            self._everybody_told.set()
        return self._reason

    async def tell(self, bound: socket.socket, *, timeout_s: float = TURN_AWAY_S) -> None:
        """Until every node was told, or the time is up."""
        await self.listen(bound)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._everybody_told.wait()
        await self.close()
