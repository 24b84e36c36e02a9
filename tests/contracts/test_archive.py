"""Attempts that are over, from a real stream into a directory and into an object store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.records import Record
from drainfsm.log import connect
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.shipment import Shipment
from drainfsm.runtime.clock import Clock
from drainfsm.store import open_store
from drainfsm_kit import logs
from drainfsm_kit.nats_servers import nats_server
from drainfsm_kit.s3 import BUCKET

Output = pytest.CaptureFixture[str]
LONG_AGO_UNIX_MS = 1_700_000_000_000


def records_of(job_id: str, count: int, *, epoch: int = 1) -> list[Record]:
    return [
        replace(record, at_unix_ms=LONG_AGO_UNIX_MS + record.follows)
        for record in logs.records_of(job_id, count, epoch=epoch)
    ]


def ship(url: str, *attempts: list[Record]) -> None:
    async def shipped() -> None:
        connection = await connect(url, timeout_s=30)
        try:
            await connection.ensure_stream()
            for records in attempts:
                first = records[0]
                await Shipment(records, job_id=first.job_id, epoch=first.epoch).ship(connection)
        finally:
            await connection.close()

    asyncio.run(shipped())


def archive(url: str, target: str, *more: str) -> int:
    return main(["export", "--archive", target, "--nats", url, *more])


def test_attempts_are_archived_once_each_and_come_back_from_there(
    own_nats_server: EmbeddedServer, tmp_path: Path, capsys: Output
) -> None:
    url, target = own_nats_server.url, tmp_path / "archive"
    one, two = records_of("a", 5), records_of("a", 4, epoch=2)
    other = records_of("b", 3)
    ship(url, one, two, other)
    assert archive(url, str(target)) == 0
    assert "3 attempts added, 0 were there" in capsys.readouterr().err
    assert (target / "a/000001.jsonl").read_bytes() == encode_lines(one)
    assert archive(url, str(target)) == 0
    assert "0 attempts added, 3 were there" in capsys.readouterr().err
    longer = records_of("b", 4)
    ship(url, longer)
    assert archive(url, str(target)) == 1
    assert "b/000001.jsonl: more of it has come" in capsys.readouterr().err
    with nats_server(tmp_path / "new") as address:
        for name in ("a/000001.jsonl", "a/000002.jsonl"):
            argv = ["--job", "a", "--nats", f"nats://{address}", "--file", str(target / name)]
            assert main(["import", *argv]) == 0
        exported = tmp_path / "back.jsonl"
        argv = ["--job", "a", "--nats", f"nats://{address}", "-o", str(exported)]
        assert main(["export", *argv]) == 0
    assert exported.read_bytes() == encode_lines([*one, *two])


def test_an_attempt_that_may_go_on_is_not_archived(
    own_nats_server: EmbeddedServer, tmp_path: Path, capsys: Output
) -> None:
    (record,) = records_of("new", 1)
    ship(own_nats_server.url, [replace(record, at_unix_ms=Clock().now_unix_ms())])
    assert archive(own_nats_server.url, str(tmp_path), "--older-than", "1h") == 0
    assert "0 attempts added, 0 were there" in capsys.readouterr().err


def test_parquet_goes_into_an_object_store(own_nats_server: EmbeddedServer, s3: int) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    ship(own_nats_server.url, records_of("a", 5))
    target = f"s3://{BUCKET}/archive-{s3}"
    assert archive(own_nats_server.url, target, "--format", "parquet") == 0
    data = open_store(target).get("a/000001.parquet")
    assert parquet.read_table(pyarrow.BufferReader(data)).num_rows == 5
