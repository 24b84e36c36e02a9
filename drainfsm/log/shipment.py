"""One attempt's records on their way into the stream."""

from __future__ import annotations

from collections.abc import Sequence

from drainfsm.core.codec import decode
from drainfsm.core.records import Record, subject_of
from drainfsm.errors import BrokerError, RecordUnreadableError, StaleWriterError
from drainfsm.log.jetstream import Connection

FRUITLESS_MAX = 3
"""Refusals in a row, with the leader's answer unchanged, before waiting for the next try."""


class Shipment:
    """How many of the records the stream has, and after which sequence the next one goes.

    Only the stream itself is believed: in any doubt its leader is asked.
    """

    def __init__(self, records: Sequence[Record], *, job_id: str, epoch: int) -> None:
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

    async def _reconcile(self, connection: Connection) -> None:
        """Learn what the stream has: one question, if that is nothing.

        Our last record at its end proves nothing: a server that came back with less than it had
        may hold a late one without those before it (``believes_its_last_record`` in
        ``specs/models/Log.tla``).
        """
        self._sequence, before = None, self.shipped_count
        self.message_count = count = await connection.count(self.subject)
        if count == 0:
            self.shipped_count, self._sequence = 0, 0
        else:
            await self._scan(connection, message_count=count)
        self._found_less = self._found_less or self.shipped_count < before

    async def _scan(self, connection: Connection, *, message_count: int) -> None:
        """Count those of ours that the readers' fold accepts, whatever else was let through."""
        messages = [message async for message in connection.delivered(self.subject)]
        if len(messages) < message_count:
            raise BrokerError(f"{self.subject}: the replica that answered is behind the leader")
        count = 0
        for message in messages:
            try:
                record = decode(message.data)
            except RecordUnreadableError:
                continue
            if count < len(self.records) and record.id == self.records[count].id:
                count += 1
            elif self._would_count(record, position=count):
                self.conflict = f"record {record.id} of another writer"
                raise StaleWriterError(self.subject, expected_count=count, actual_count=None)
        self.shipped_count, self._sequence = count, messages[-1].sequence

    def _would_count(self, record: Record, *, position: int) -> bool:
        """The fold takes it for the record that stands at this position."""
        own = record.job_id == self.job_id and record.epoch == self.epoch
        return own and record.follows == position
