"""The agent's Unix socket: ranks attach here, and ``drainfsm notify`` calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from drainfsm.errors import ProtocolError
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.processes.exit_codes import describe_exit, watch_exit
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import Codec, peer_of
from drainfsm.runtime.wire.streams import read_message, write_message

LAST_WORDS_S = 0.5
"""Between the end of a rank's connection and its exit code: it is sooner, or the rank lives on."""

First: TypeAlias = m.FromRank | m.FromCaller
Caller = Callable[[m.FromCaller], Awaitable[m.NotifyAnswer]]


class RankEnds(Protocol):
    """Who wants to know which rank processes live, and how they end."""

    def rank_began(self, rank: int, incarnation: str, pid: int) -> None:
        """``pid``: 0 where it cannot be seen from here."""

    def rank_ended(self, rank: int, incarnation: str, exit_code: int | None) -> None: ...


class RankServer:
    def __init__(
        self,
        ranks: LocalRanks,
        *,
        start: LocalStart,
        call: Caller,
        ends: RankEnds,
        warn: Callable[[str], None],
    ) -> None:
        """``call``: answers callers."""
        self._ranks = ranks
        self._start = start
        self._call = call
        self._ends = ends
        self._warn = warn
        self._codec: Codec[First] = Codec(First)
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> None:
        """Or elsewhere from now on; who is connected stays so."""
        former = self._server
        self._server = await asyncio.start_unix_server(self._connected, path)
        path.chmod(0o600)
        if former is not None:
            former.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = None
        try:
            pid, uid = peer_of(writer.get_extra_info("socket"))
            if uid not in (os.getuid(), 0):
                return
            first = await read_message(reader, self._codec)
            match first:
                case m.Attach():
                    await self._serve_rank(first, pid, reader, writer)
                case m.GiveNotice() | m.TakeBack():
                    write_message(writer, await self._call(first))
                    await writer.drain()
                case _:
                    pass
        except (ProtocolError, ConnectionError) as error:
            self._warn(f"a process on the agent's socket: {error}")
            write_message(writer, m.Refused(reason=str(error)))
        finally:
            self._connections.pop(writer, None)
            writer.close()

    async def _serve_rank(
        self,
        attach: m.Attach,
        pid: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        def send(message: m.ToRank) -> None:
            write_message(writer, message)

        start = await self._start.ask(attach)
        if reader.at_eof():
            return  # it did not wait for so long
        try:
            rank = self._ranks.attach(attach, send, restart=start.restart)
        except ValueError as error:
            self._warn(f"a rank was refused: {error}")
            write_message(writer, m.Refused(reason=str(error)))
            return
        ended = asyncio.Event()

        def on_exit(exit_code: int | None) -> None:
            self._ends.rank_ended(rank, attach.incarnation, exit_code)
            self._ranks.gone(rank, send, how=describe_exit(exit_code))
            ended.set()

        self._ends.rank_began(rank, attach.incarnation, pid)
        watched = watch_exit(pid, on_exit)
        send(self._start.attached(start, rank=rank, world_size=self._ranks.world_size))
        self._ranks.attached(rank)
        try:
            while (message := await read_message(reader, self._codec)) is not None:
                if not isinstance(message, m.GiveNotice | m.TakeBack):
                    self._ranks.on_message(rank, send, message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await ended.wait()
        finally:
            if not ended.is_set():
                # It closed its session and lives on, or its death has gone unseen so far.
                self._ranks.gone(rank, send, how="closed its connection")
                if not watched:
                    self._ends.rank_ended(rank, attach.incarnation, None)
