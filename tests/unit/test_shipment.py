"""How the records of an attempt get into a stream, against one that is held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drainfsm.core.codec import encode
from drainfsm.core.records import Record
from drainfsm.errors import BrokerError, RecordRefusedError, StaleWriterError
from drainfsm.log import shipper as shipper_module
from drainfsm.log.jetstream import Connection
from drainfsm.log.journal import Journal, journal_path, read_journal
from drainfsm.log.shipment import FRUITLESS_MAX, Shipment
from drainfsm.log.shipper import FAILURES_MAX, Shipper, World
from drainfsm.log.wire import BrokerMessage
from drainfsm_kit.logs import records_of

JOB = "job"


class Stream:
    """One subject, and the connection to it."""

    def __init__(self, records: list[Record] | None = None) -> None:
        self.messages = [
            BrokerMessage(n, encode(record)) for n, record in enumerate(records or [], start=1)
        ]
        self.appended: list[str] = []
        self.hidden = 0
        """Messages that the replica which answers does not have yet."""

        self.refusals = 0
        """Appends that are still refused."""

        self.away = 0
        """Connections that still fail."""

        self.connected = 0
        self.refused: set[str] = set()
        """Ids of records that the server does not take at all."""

        self.closed = False
        self.forgets_after_ms, self.stream_created = 0, "once"
        self.link = SimpleNamespace(reconnect_hooks=[])

    async def connect(self, *given: Any, **named: Any) -> Connection:
        self.connected += 1
        self.closed = False
        return cast(Connection, self)

    async def close(self, **named: Any) -> None:
        self.closed = True

    async def ensure_stream(self, **named: Any) -> list[str]:
        if self.away:
            self.away -= 1
            raise BrokerError("no server answers")
        return []

    def created_stream(self) -> bool:
        return False

    async def append(self, record: Record, *, after_sequence: int) -> int:
        if record.id in self.refused:
            raise RecordRefusedError("too large")
        last = self.messages[-1].sequence if self.messages else 0
        if self.refusals or after_sequence != last:
            self.refusals = max(0, self.refusals - 1)
            raise StaleWriterError("subject", expected_count=0, actual_count=None)
        self.messages.append(BrokerMessage(last + 1, encode(record)))
        self.appended.append(record.id)
        return last + 1

    async def count(self, subject: str) -> int:
        return len(self.messages)

    async def delivered(self, subject: str) -> AsyncIterator[BrokerMessage]:
        for message in self.messages[: len(self.messages) - self.hidden]:
            yield message


def shipped(stream: Stream, records: list[Record]) -> Shipment:
    shipment = Shipment(records, job_id=JOB, epoch=1)
    asyncio.run(shipment.ship(cast(Connection, stream)))
    return shipment


@pytest.mark.parametrize("there", range(4))
def test_what_the_stream_lacks_is_sent_and_nothing_else(there: int) -> None:
    records = records_of(JOB, 3)
    stream = Stream(records[:there])
    assert shipped(stream, records).done
    assert stream.appended == [record.id for record in records[there:]]


def test_what_no_reader_counts_stands_in_nobodys_way() -> None:
    """Repeats, and what another writer put in a place that is taken."""
    records = records_of(JOB, 3)
    late = records_of(JOB, 1, writer="other")
    stream = Stream([records[0], *late, records[0], records[1], *late])
    assert shipped(stream, records).done
    assert stream.appended == [records[2].id]
    assert shipped(Stream([*records, *late, records[0]]), records).done


@pytest.mark.parametrize("at", range(3))
def test_another_writers_record_in_our_place_is_a_conflict(at: int) -> None:
    records = records_of(JOB, 3)
    stream = Stream([*records[:at], *records_of(JOB, 1, first=at, writer="other")])
    shipment = Shipment(records, job_id=JOB, epoch=1)
    with pytest.raises(StaleWriterError):
        asyncio.run(shipment.ship(cast(Connection, stream)))
    assert shipment.conflict == f"record other-1-{at} of another writer"
    assert stream.appended == []
    shipment.doubt()
    assert (shipment.conflict, shipment.done) == ("", False)


def test_the_record_of_another_job_or_epoch_is_no_conflict() -> None:
    records = records_of(JOB, 2)
    stream = Stream([*records_of("other", 1), *records_of(JOB, 1, epoch=2)])
    assert shipped(stream, records).done


def test_a_replica_that_is_behind_is_not_believed() -> None:
    records = records_of(JOB, 3)
    stream = Stream(records[:2])
    stream.hidden = 1
    with pytest.raises(BrokerError, match="behind the leader"):
        shipped(stream, records)
    assert stream.appended == []


def test_refusals_that_change_nothing_end_after_a_few_and_wait() -> None:
    records = records_of(JOB, 1)
    stream = Stream()
    stream.refusals = FRUITLESS_MAX
    assert shipped(stream, records).done
    stream = Stream()
    stream.refusals = FRUITLESS_MAX + 1
    with pytest.raises(BrokerError, match="keeps refusing"):
        shipped(stream, records)


def test_refusals_between_which_something_was_sent_do_not_add_up() -> None:
    records = records_of(JOB, 2)
    stream = Stream()
    stream.refusals = FRUITLESS_MAX
    taken = stream.append

    async def append(record: Record, *, after_sequence: int) -> int:
        sequence = await taken(record, after_sequence=after_sequence)
        if record is records[0]:
            stream.refusals = FRUITLESS_MAX
        return sequence

    stream.append = append  # type: ignore[method-assign]
    assert shipped(stream, records).done


def test_a_record_whose_answer_was_lost_is_not_sent_again() -> None:
    records = records_of(JOB, 2)
    stream = Stream()
    taken = stream.append

    async def append(record: Record, *, after_sequence: int) -> int:
        sequence = await taken(record, after_sequence=after_sequence)
        if stream.appended == [records[0].id]:
            raise BrokerError("no answer")
        return sequence

    stream.append = append  # type: ignore[method-assign]
    shipment = Shipment(records, job_id=JOB, epoch=1)
    with pytest.raises(BrokerError, match="no answer"):
        asyncio.run(shipment.ship(cast(Connection, stream)))
    asyncio.run(shipment.ship(cast(Connection, stream)))
    assert stream.appended == [record.id for record in records]


def test_what_a_server_forgot_is_sent_again() -> None:
    records = records_of(JOB, 3)
    stream = Stream()
    shipment = shipped(stream, records)
    del stream.messages[1:]
    shipment.doubt()
    asyncio.run(shipment.ship(cast(Connection, stream)))
    assert [record.id for record in records[1:]] == stream.appended[3:]


# --- the shipper --------------------------------------------------------------------------------


def journal_of(state_dir: Path, *, epoch: int, count: int) -> Journal:
    path = journal_path(state_dir, job_id=JOB, epoch=epoch)
    journal = Journal.open(path, job_id=JOB, epoch=epoch)
    for record in records_of(JOB, count, epoch=epoch):
        journal.append(record)
    return journal


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):  # it never will be: fail, and do not hang
        while not true():
            await asyncio.sleep(0.001)


def run(
    stream: Stream,
    state_dir: Path,
    live: Journal | None,
    work: Callable[[Shipper], Awaitable[None]],
    *,
    read: list[str] | None = None,
) -> list[str]:
    """What it told. ``read``: gets the names of the journals that it read."""
    told: list[str] = []

    def reading(path: Path) -> Iterable[Record]:
        if read is not None:
            read.append(path.stem)
        return read_journal(path)

    async def main() -> None:
        shipper = Shipper(
            server="nats://memory",
            state_dir=state_dir,
            job_id=JOB,
            on_error=told.append,
            world=World(connect=stream.connect, read_journal=reading),
        )
        if live is not None:
            shipper.attach(live)
        await shipper.start()
        try:
            await work(shipper)
        finally:
            await shipper.close(timeout_ms=10_000)

    asyncio.run(main())
    return told


@pytest.mark.parametrize(
    ("live", "ids"), [(3, ["w-1-0", "w-2-0", "w-3-0"]), (2, ["w-1-0", "w-2-0"]), (1, ["w-1-0"])]
)
def test_earlier_attempts_first_and_later_ones_not_at_all(
    tmp_path: Path, live: int, ids: list[str]
) -> None:
    """Those belong to attempts that fence this one: they ship them."""
    stream = Stream()
    journals = {epoch: journal_of(tmp_path, epoch=epoch, count=1) for epoch in (1, 2, 3)}

    async def work(shipper: Shipper) -> None:
        assert await shipper.flush(timeout_ms=60_000)

    read: list[str] = []
    assert run(stream, tmp_path, journals[live], work, read=read) == []
    assert stream.appended == ids
    assert read == [f"{epoch:06d}" for epoch in range(1, live)], "its own is in memory"


def test_every_third_failure_in_a_row_costs_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "RETRY_S", 0.001)
    monkeypatch.setattr(shipper_module, "RETRY_S_MAX", 0.001)
    stream = Stream()
    stream.away = 2 * FAILURES_MAX - 1

    async def work(shipper: Shipper) -> None:
        await until(lambda: stream.appended != [])

    told = run(stream, tmp_path, journal_of(tmp_path, epoch=1, count=1), work)
    assert told == ["no server answers"], "told once"
    assert stream.connected == 2


def test_a_record_that_is_refused_does_not_hold_up_other_attempts(tmp_path: Path) -> None:
    stream = Stream()
    stream.refused = {"w-1-0"}
    for epoch in (1, 2):
        journal_of(tmp_path, epoch=epoch, count=1).close()

    async def work(shipper: Shipper) -> None:
        await until(lambda: stream.appended == ["w-2-0"])
        assert not await shipper.flush(timeout_ms=20)

    assert any("too large" in line for line in run(stream, tmp_path, None, work))


def test_a_conflict_and_a_damaged_journal_are_told_and_no_flush_is_whole(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, epoch=1, count=2)
    journal.close()
    stream = Stream(records_of(JOB, 1, writer="other"))

    async def work(shipper: Shipper) -> None:
        assert not await shipper.flush(timeout_ms=60_000)

    assert any("is another job named" in line for line in run(stream, tmp_path, None, work))
    data = journal.path.read_bytes()
    journal.path.write_bytes(data.replace(b'"w-1-0"', b'"x-1-0"'))
    told = run(Stream(), tmp_path, None, work)
    assert any("records before it are shipped" in line for line in told)
