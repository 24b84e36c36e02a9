"""``drainfsm import`` against a real server: whatever was kept where, each record is there once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.records import Record
from drainfsm.log import Connection, connect
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.journal import Journal, journal_path
from drainfsm.log.shipper import Shipper
from drainfsm.store import open_store
from drainfsm.store.kept_log import KEPT, keep
from drainfsm_kit.logs import records_of

JOB = "job"
Output = pytest.CaptureFixture[str]


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    connection = await connect(url, timeout_s=30)
    try:
        yield connection
    finally:
        await connection.close()


class Place:
    def __init__(self, server: EmbeddedServer, directory: Path) -> None:
        self.url = server.url
        self.store = directory / "ckpt"
        self.objects = open_store(str(self.store))
        self.objects.create(parents=False)
        self.state_dir = directory / "state"

    def bring(self, *argv: str) -> int:
        return main(
            ["import", "--job", JOB, "--nats", self.url, *(argv or ["--store", str(self.store)])]
        )

    def stream(self) -> list[Record]:
        async def read() -> list[Record]:
            async with connected(self.url) as connection:
                return list(await connection.read_job(JOB))

        return asyncio.run(read())

    def append(self, records: list[Record]) -> None:
        """As another writer does, from the first on."""

        async def write() -> None:
            async with connected(self.url) as connection:
                await connection.ensure_stream()
                after = 0
                for record in records:
                    after = await connection.append(record, after_sequence=after)

        asyncio.run(write())

    def ship(self, records: list[Record]) -> None:
        """What the next attempt on the machine does with a journal that it finds."""
        path = journal_path(self.state_dir, job_id=JOB, epoch=1)
        journal = Journal.open(path, job_id=JOB, epoch=1)
        journal.append(*records)
        journal.close()

        async def run() -> None:
            shipper = Shipper(server=self.url, state_dir=self.state_dir, job_id=JOB, on_error=print)
            await shipper.start()
            assert await shipper.flush(timeout_ms=60_000)
            await shipper.close(timeout_ms=5_000)

        asyncio.run(run())


@pytest.fixture
def place(own_nats_server: EmbeddedServer, tmp_path: Path) -> Place:
    return Place(own_nats_server, tmp_path)


def test_what_the_store_keeps_reaches_the_stream_once(place: Place, capsys: Output) -> None:
    first, second = records_of(JOB, 5), records_of(JOB, 3, epoch=2)
    keep(place.objects, first)
    keep(place.objects, second)
    place.append(first[:2])
    assert place.bring() == 0
    assert "attempt 1: 3 records added, 2 were there" in capsys.readouterr().out
    assert place.stream() == [*first, *second]
    assert place.bring("--store", str(place.store), "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["added_count"], one["present_count"]) for one in told] == [(0, 5), (0, 3)]
    assert place.stream() == [*first, *second]


@pytest.mark.parametrize("import_first", [True, False])
def test_a_machine_that_comes_back_ships_nothing_twice(place: Place, import_first: bool) -> None:
    records = records_of(JOB, 6)
    keep(place.objects, records[:4])
    if import_first:
        place.bring()
    place.ship(records)
    if not import_first:
        place.bring()
    assert place.stream() == records


def test_pieces_are_put_together_and_what_is_missing_is_named(place: Place, capsys: Output) -> None:
    records = records_of(JOB, 8)
    keep(place.objects, records[5:7])
    keep(place.objects, records[7:])
    place.append(records[:3])
    assert place.bring() == 1
    assert "record 3 is missing, and those behind it wait for it" in capsys.readouterr().out
    assert place.stream() == records[:3]
    keep(place.objects, records[3:5])
    assert place.bring() == 0
    assert place.stream() == records


def test_a_line_that_is_no_record_keeps_no_other_waiting(place: Place, capsys: Output) -> None:
    records = records_of(JOB, 3)
    data = b"garbage\n" + encode_lines(records) + encode_lines(records_of("other", 1))
    place.objects.put_if_absent(f"{KEPT}000001/some.jsonl", data)
    assert place.bring() == 1
    assert "line 1" in capsys.readouterr().err
    assert place.stream() == records


def test_another_writers_log_is_left_alone(place: Place, capsys: Output) -> None:
    theirs = records_of(JOB, 2, writer="theirs")
    place.append(theirs)
    keep(place.objects, records_of(JOB, 4))
    assert place.bring() == 1
    assert "NOT imported, another writer's log is there" in capsys.readouterr().out
    assert place.stream() == theirs


def test_an_exported_file_is_brought_in_too(place: Place, tmp_path: Path, capsys: Output) -> None:
    records = records_of(JOB, 3)
    file = tmp_path / "log.jsonl"
    file.write_bytes(encode_lines(records))
    assert place.bring("--file", str(file)) == 0
    assert place.stream() == records
    assert place.bring() == 2
    assert "the store keeps no records of job job" in capsys.readouterr().err


def test_more_attempts_than_a_server_has_consumers(
    place: Place, tmp_path: Path, capsys: Output
) -> None:
    records = [record for epoch in range(1, 1_201) for record in records_of(JOB, 1, epoch=epoch)]
    file = tmp_path / "exported.jsonl"
    file.write_bytes(encode_lines(records))
    for added, present in ((1, 0), (0, 1)):
        assert place.bring("--file", str(file)) == 0
        told = capsys.readouterr().out.splitlines()
        assert len(told) == len(records)
        assert all(f"{added} records added, {present} were there" in line for line in told)
    assert place.stream() == records


def test_a_record_that_is_refused_holds_up_its_own_attempt_alone(
    place: Place, tmp_path: Path, capsys: Output
) -> None:
    large = [replace(record, id="x" * 1_200_000) for record in records_of(JOB, 1, epoch=2)]
    first, third = records_of(JOB, 2), records_of(JOB, 2, epoch=3)
    file = tmp_path / "exported.jsonl"
    file.write_bytes(encode_lines([*first, *large, *third]))
    assert place.bring("--file", str(file)) == 1
    told = capsys.readouterr().out.splitlines()
    assert "attempt 2: 0 records added, 0 were there; the next was refused" in told[1]
    assert place.stream() == [*first, *third]
