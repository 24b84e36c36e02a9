"""For tests of logs: records of any number, and a network that loses what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from msgspec.structs import replace

from drainfsm.core.chain import line_digest
from drainfsm.core.codec import encode
from drainfsm.core.events import HealthyStepReached
from drainfsm.core.records import Record
from drainfsm.testing.scenario import NOON_UNIX_MS


def records_of(
    job_id: str, count: int, *, epoch: int = 1, first: int = 0, writer: str = "w"
) -> list[Record]:
    """The records ``first`` to ``first + count - 1`` of one attempt's log."""
    return [
        Record(
            id=f"{writer}-{epoch}-{position}",
            job_id=job_id,
            epoch=epoch,
            follows=position,
            at_unix_ms=NOON_UNIX_MS + position,
            events=(HealthyStepReached(step=position),),
        )
        for position in range(first, first + count)
    ]


def chained(records: Iterable[Record]) -> list[Record]:
    """Each names the one before it."""
    found: list[Record] = []
    for record in records:
        before = line_digest(encode(found[-1])) if found else ""
        found.append(replace(record, before=before))
    return found


class Proxy:
    """A TCP proxy in front of a server. ``lose_answers`` makes it forward requests only."""

    def __init__(self, *, to_port: int) -> None:
        self.port = 0
        self.lose_answers = False
        self.request_bytes = 0
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection, as a network would: no goodbye."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            back, out = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        if self._closed:  # while the connection was made
            writer.transport.abort()
            out.transport.abort()
            return
        self._writers.add(out)
        for source, sink, answers in ((reader, out, False), (back, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, answers=answers))
            self._tasks.add(task)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    if not answers:
                        self.request_bytes += len(data)
                    elif self.lose_answers:
                        continue
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.transport.abort()
