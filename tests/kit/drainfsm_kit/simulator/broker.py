"""The simulated NATS server with its one stream, and the connection that the shipper gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from drainfsm.core.codec import decode, encode
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import BrokerError, StaleWriterError
from drainfsm.log.jetstream import Connection
from drainfsm.log.link import Link
from drainfsm.log.server import NatsServer
from drainfsm.log.wire import BrokerMessage
from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.timeline import US_PER_S, Timeline
from drainfsm_kit.simulator.windows import Windows

URL = "nats://simulated"
ANSWER_US = (300, 3_000)
SILENT_S = 5.0
"""Until a client gives up on an answer."""


class Stored(msgspec.Struct, frozen=True):
    sequence: int
    subject: str
    record_id: str
    data: bytes


class Broker:
    """An append-only stream. It may be away, leave appends unanswered, let a stale one through,
    or come back without its newest messages."""

    def __init__(self, timeline: Timeline, chance: Chance, tally: Tally) -> None:
        self.stream: list[Stored] = []
        self.faults = Windows(timeline)
        """``away``, ``mute`` (done, no answer)."""

        self.leaks = False
        """Stale appends are let through."""

        self.connections: list[SimulatedConnection] = []
        self._sequence = 0
        self._chance = chance.stream("broker")
        self._tally = tally

    async def connect(
        self,
        server: NatsServer | str,
        *,
        timeout_s: float,
        on_error: Callable[[str], None] | None = None,
    ) -> Connection:
        await asyncio.sleep(self.answer_s())
        if self.faults.active("away") is not None:
            self._tally.hit("broker_away")
            raise BrokerError("no server answers")
        connection = SimulatedConnection(self, self._tally)
        self.connections.append(connection)
        return connection

    def answer_s(self) -> float:
        return self._chance.randint(*ANSWER_US) / US_PER_S

    def last(self, subject: str) -> Stored | None:
        return next((one for one in reversed(self.stream) if one.subject == subject), None)

    def append(self, record: Record, *, after_sequence: int) -> int:
        """Raises: StaleWriterError."""
        subject = subject_of(job_id=record.job_id, epoch=record.epoch)
        last = self.last(subject)
        if after_sequence != (last.sequence if last is not None else 0):
            if not self.leaks:
                raise StaleWriterError(subject, expected_count=record.follows, actual_count=None)
            self._tally.hit("broker_leak")
        self._sequence += 1
        self.stream.append(Stored(self._sequence, subject, record.id, encode(record)))
        return self._sequence

    def roll_back(self, count: int) -> int:
        """It was killed, and comes back without what it had not synced. How much that was.

        A server that leaks loses nothing: it takes a cluster to leak, and a lone server to lose.
        """
        if self.leaks:
            return 0
        kept = max(0, len(self.stream) - count)
        lost = len(self.stream) - kept
        del self.stream[kept:]
        self._sequence = self.stream[-1].sequence if self.stream else 0
        for connection in self.connections:
            for hook in connection.link.reconnect_hooks:
                hook()
        return lost

    def read(self, *, job_id: str, epoch: int) -> list[Record]:
        subject = subject_of(job_id=job_id, epoch=epoch)
        return [decode(one.data) for one in self.stream if one.subject == subject]


class SimulatedConnection(Connection):
    """What ``Shipper`` and ``Shipment`` use of a connection."""

    def __init__(self, broker: Broker, tally: Tally) -> None:
        super().__init__(Link(URL))
        self._broker = broker
        self._tally = tally
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    async def close(self, *, timeout_s: float = 0.0) -> None:
        self._closed = True
        if self in self._broker.connections:
            self._broker.connections.remove(self)

    async def ensure_stream(
        self, *, replicas: int = 1, sync_always: bool | None = None
    ) -> list[str]:
        await self._reach()
        return []

    async def _reach(self) -> None:
        if self._broker.faults.active("away") is not None:
            self._tally.hit("broker_away")
            await asyncio.sleep(SILENT_S)
            raise BrokerError("no answer")
        await asyncio.sleep(self._broker.answer_s())

    async def append(self, record: Record, *, after_sequence: int) -> int:
        await self._reach()
        sequence = self._broker.append(record, after_sequence=after_sequence)
        if self._broker.faults.active("mute") is not None:
            self._tally.hit("broker_mute")
            await asyncio.sleep(SILENT_S)
            raise BrokerError("stored, but the answer is lost")
        await asyncio.sleep(self._broker.answer_s())
        return sequence

    async def count(self, subject: str) -> int:
        await self._reach()
        return sum(one.subject == subject for one in self._broker.stream)

    async def delivered(self, subject: str) -> AsyncGenerator[BrokerMessage, None]:
        await self._reach()
        for one in list(self._broker.stream):
            if one.subject == subject:
                yield BrokerMessage(one.sequence, one.data)
