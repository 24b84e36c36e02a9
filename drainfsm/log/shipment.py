"""One attempt's records on their way into the stream."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from drainfsm.core.codec import decode
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import BrokerError, RecordUnreadableError, StaleWriterError
from drainfsm.log.jetstream import Connection

FRUITLESS_MAX = 3
"""Refusals in a row, with the leader's answer unchanged, before waiting for the next try."""

AGE_SHARE = 0.9
"""Of the age at which the stream forgets a record. What is older may be gone by the server's clock,
and would go in a moment if it were shipped again."""


class Shipment:
    """How many of the records the stream has, and after which sequence the next one goes.

    Only the stream itself is believed: in any doubt its leader is asked.
    """

    def __init__(
        self, records: Sequence[Record], *, job_id: str, epoch: int, forgotten_count: int = 0
    ) -> None:
        """``forgotten_count``: that many records, from the first on, are older than the stream
        keeps them: where later ones are in it, or these are all, they are not shipped."""
        self.records = records
        """Grows, if the journal is being written."""

        self.job_id = job_id
        self.epoch = epoch
        self.subject = subject_of(job_id=job_id, epoch=epoch)
        self.shipped_count = 0
        self.message_count = 0
        """Of its subject in the stream, as far as is known."""

        self.conflict = ""
        """Not empty: another writer's record stands where ours belongs. Nothing can be shipped."""

        self._sequence: int | None = None
        self._doubted = False
        self._found_less = False
        self._forgotten_count = forgotten_count
        self._stored_s: list[float] = []
        """When each was known to be stored first, by the loop's clock."""

    def forgotten(self, after_ms: int) -> int:
        """How many records, from the first on, the stream may have forgotten by now, as it keeps
        each for ``after_ms``; 0: for ever."""
        if not after_ms:
            return 0
        before_s = asyncio.get_running_loop().time() - AGE_SHARE * after_ms / 1_000
        return max(self._forgotten_count, bisect_right(self._stored_s, before_s))

    @property
    def whole(self) -> bool:
        """Everything of it is in the stream."""
        return self.done and not self.conflict and self._sequence is not None

    @property
    def done(self) -> bool:
        return self.shipped_count >= len(self.records) and not self._doubted

    def doubt(self) -> None:
        """Ask the stream again what it has. May be called in the middle of ``ship``."""
        self._doubted = True
        self.conflict = ""

    def found_less(self) -> bool:
        """True once after the stream turned out to have lost records: others may be gone, too."""
        found, self._found_less = self._found_less, False
        return found

    def unload(self) -> None:
        """Let go of records that are in the stream; they are on disk, if needed again."""
        self.records = ()

    async def ship(self, connection: Connection) -> None:
        """Send what the stream lacks, in order.

        Raises:
            StaleWriterError: it holds another writer's records; ``conflict`` is set.
            BrokerError: the rest must wait.
        """
        fruitless = 0
        while not self.done:
            if self._sequence is None or self._doubted:
                self._doubted = False
                await self._reconcile(connection)
                continue
            record = self.records[self.shipped_count]
            after, self._sequence = self._sequence, None  # in doubt until the answer is here
            try:
                self._sequence = await connection.append(record, after_sequence=after)
            except StaleWriterError:
                fruitless += 1
                if fruitless > FRUITLESS_MAX:
                    raise BrokerError(f"{self.subject} keeps refusing record {record.id}") from None
            else:
                fruitless = 0
                self.shipped_count += 1
                self.message_count += 1
                self._stored_s.append(asyncio.get_running_loop().time())

    async def _reconcile(self, connection: Connection) -> None:
        """Learn what the stream has: one question, if that is nothing.

        Our last record at its end proves nothing: a server that came back with less than it had
        may hold a late one without those before it (``believes_its_last_record`` in
        ``specs/models/Log.tla``).
        """
        self._sequence, before = None, self.shipped_count
        self.message_count = count = await connection.count(self.subject)
        if count == 0:
            self.shipped_count, self._sequence = self._where_none_is(connection), 0
        else:
            await self._scan(connection, message_count=count)
        self._found_less = self._found_less or self.shipped_count < before
        now_s = asyncio.get_running_loop().time()
        known_count = len(self._stored_s)
        self._stored_s[self.shipped_count :] = [now_s] * (self.shipped_count - known_count)

    async def _scan(self, connection: Connection, *, message_count: int) -> None:
        """Count those of ours that the readers' fold accepts, whatever else was let through. Those
        before the first one that is there count, too, where the stream has forgotten them."""
        messages = [message async for message in connection.delivered(self.subject)]
        if len(messages) < message_count:
            raise BrokerError(f"{self.subject}: the replica that answered is behind the leader")
        count, forgotten_count = 0, self.forgotten(connection.forgets_after_ms)
        for message in messages:
            try:
                record = decode(message.data)
            except RecordUnreadableError:
                continue
            if count == 0 and self._is_at(record, range(1, forgotten_count + 1)):
                count = record.follows
            if count < len(self.records) and record.id == self.records[count].id:
                count += 1
            elif self._would_count(record, position=count):
                self.conflict = f"record {record.id} of another writer"
                raise StaleWriterError(self.subject, expected_count=count, actual_count=None)
        self.shipped_count = count or self._where_none_is(connection)
        self._sequence = messages[-1].sequence

    def _where_none_is(self, connection: Connection) -> int:
        """None of ours is in the stream: where to begin. A later part alone is of no use to
        readers, unless they have heard the rest."""
        forgotten_count = self.forgotten(connection.forgets_after_ms)
        heard = bool(self._stored_s)
        return forgotten_count if heard or forgotten_count == len(self.records) else 0

    def _is_at(self, record: Record, places: range) -> bool:
        """It is the one of ours at one of these places."""
        place = record.follows
        there = place in places and place < len(self.records)
        return there and self.records[place].id == record.id

    def _would_count(self, record: Record, *, position: int) -> bool:
        """The fold takes it for the record that stands at this position."""
        own = record.job_id == self.job_id and record.epoch == self.epoch
        return own and record.follows == position
