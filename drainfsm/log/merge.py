"""Records that were kept elsewhere, put into the stream: each once, however often it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from drainfsm.core.codec import decode_as_stored
from drainfsm.core.records import Record, subjects_of
from drainfsm.errors import RecordRefusedError, RecordUnreadableError, StaleWriterError
from drainfsm.log.jetstream import Connection
from drainfsm.log.shipment import Shipment


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt's log, afterwards."""

    epoch: int
    added_count: int
    present_count: int
    """Records that the stream had before."""

    missing: int | None = None
    """Position of the first record that nobody has, with later ones behind it that had to wait."""

    conflict: str = ""
    """Not empty: the stream holds another writer's record; nothing was added."""

    refused: str = ""
    """Not empty: why the stream did not take a record, nor those behind it."""


async def merge(connection: Connection, records: Iterable[Record], *, job_id: str) -> list[Merged]:
    """Those of the job, attempt by attempt. Of a record that is given twice, one counts.

    Raises:
        BrokerError: the server is gone; what was added stays, and another call goes on from there.
    """
    attempts: dict[int, dict[int, Record]] = {}
    for record in records:
        if record.job_id == job_id:
            attempts.setdefault(record.epoch, {}).setdefault(record.follows, record)
    there = await _present(connection, job_id=job_id)
    return [
        await _merge(connection, attempts[epoch], there.get(epoch, []), job_id=job_id, epoch=epoch)
        for epoch in sorted(attempts)
    ]


async def _merge(
    connection: Connection,
    given: dict[int, Record],
    present: list[Record],
    *,
    job_id: str,
    epoch: int,
) -> Merged:
    whole = list(present)
    while (record := given.get(len(whole))) is not None:
        whole.append(record)
    missing = len(whole) if max(given) >= len(whole) else None
    conflict, refused, added_count = _conflict(present, given), "", 0
    if not conflict and len(whole) > len(present):
        shipment = Shipment(whole, job_id=job_id, epoch=epoch)
        try:
            await shipment.ship(connection)
        except StaleWriterError:
            conflict = shipment.conflict
        except RecordRefusedError as error:  # of this attempt: others are not held up
            refused = f"{error}"
        added_count = 0 if conflict else shipment.shipped_count - len(present)
    return Merged(
        epoch=epoch,
        added_count=added_count,
        present_count=len(present),
        missing=missing,
        conflict=conflict,
        refused=refused,
    )


async def _present(connection: Connection, *, job_id: str) -> dict[int, list[Record]]:
    """What a reader counts of the stream, by attempt. By one consumer: a server has no thousands of
    them."""
    found: dict[int, list[Record]] = {}
    async for message in connection.delivered(subjects_of(job_id)):
        try:
            record = decode_as_stored(message.data)
        except RecordUnreadableError:
            continue
        attempt = found.setdefault(record.epoch, [])
        if (record.job_id, record.follows) == (job_id, len(attempt)):
            attempt.append(record)
    return found


def _conflict(present: Sequence[Record], given: dict[int, Record]) -> str:
    for position, record in enumerate(present):
        other = given.get(position)
        if other is not None and other.id != record.id:
            return f"record {position} is {record.id} there, and {other.id} here"
    return ""
