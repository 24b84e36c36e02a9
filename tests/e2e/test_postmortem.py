"""Replay, explain and export from a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.codec import encode, encode_lines
from drainfsm.core.records import Record
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.testing.scenario import Scenario

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    running = EmbeddedServer.start(tmp_path_factory.mktemp("nats"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def records(server: EmbeddedServer) -> list[Record]:
    """Two attempts in the stream: one that saved, and one that has just begun."""
    first, second = Scenario().saving(), Scenario(epoch=2)
    first.given(first.staged(), first.durable(), first.verified(), first.published())
    again = [replace(record, id=f"second-{record.id}") for record in second.history]
    history = [*first.history, *again]
    asyncio.run(_store(server.url, history))
    return history


async def _store(url: str, history: list[Record]) -> None:
    connection = await connect(url, timeout_s=60)
    try:
        await connection.ensure_stream()
        last: dict[int, int] = {}
        for record in history:
            after = last.get(record.epoch, 0)
            last[record.epoch] = await connection.append(record, after_sequence=after)
    finally:
        await connection.close()


@pytest.fixture(autouse=True)
def _configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: EmbeddedServer) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAINFSM_NATS", server.url)


def test_the_stream_an_export_of_it_and_the_records_are_one_history(
    records: list[Record], tmp_path: Path, capsys: Output
) -> None:
    file, mine = tmp_path / "job.jsonl", tmp_path / "mine.jsonl"
    mine.write_bytes(encode_lines(records))
    assert main(["export", "--job", "job", "-o", str(file)]) == 0
    assert file.read_bytes() == mine.read_bytes()
    outputs = []
    for argv in (["--job", "job"], ["--file", str(file)], ["--file", str(mine)]):
        for form in ([], ["--json"]):
            capsys.readouterr()
            assert main(["replay", *argv, *form]) == 0
            outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[2] == outputs[4] != ""
    assert outputs[1] == outputs[3] == outputs[5] != ""


def test_one_attempt_of_the_stream(records: list[Record], capsys: Output) -> None:
    assert main(["replay", "--job", "job", "--epoch", "2"]) == 0
    printed = capsys.readouterr().out
    assert "job job, attempt 2" in printed
    assert "save_started" not in printed


def test_a_job_that_the_stream_does_not_know_is_named_and_no_credentials_are(
    records: list[Record], server: EmbeddedServer, capsys: Output
) -> None:
    assert main(["replay", "--job", "nobody"]) == 2
    message = capsys.readouterr().err
    assert "no records of job nobody" in message
    assert f"127.0.0.1:{server.port}" in message
    assert "@" in server.url
    assert server.url.rpartition("@")[0].rpartition("/")[2] not in message


def test_a_server_that_is_not_there_is_said_with_what_to_do(capsys: Output) -> None:
    assert main(["replay", "--job", "job", "--nats", "nats://127.0.0.1:1"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("drainfsm: ")
    assert "leave --nats out" in message


@pytest.mark.parametrize("command", ["replay", "explain", "report", "export"])
def test_garbage_and_forged_messages_are_said_and_the_rest_is_read(
    records: list[Record], server: EmbeddedServer, command: str, capsys: Output
) -> None:
    """Whoever may publish can write what is no record of this job: it ends no reader."""
    job = f"spoilt-{command}"
    mine = [replace(record, job_id=job) for record in records]
    stranger = replace(records[0], id="stranger")
    garbage = (b"\xff{", b"[" * 10_000, encode(stranger))
    asyncio.run(_spoil(server.url, job, mine, garbage))
    assert main([command, "--job", job, *(("-o", "-") if command == "export" else ())]) == 1
    told = capsys.readouterr()
    assert job in told.out
    assert told.err.count("of the stream: ") == len(garbage)
    assert "it says that it is of job 'job'" in told.err


async def _spoil(url: str, job: str, history: list[Record], garbage: tuple[bytes, ...]) -> None:
    client = await nats.connect(url)
    for data in garbage:
        await client.jetstream().publish(f"drainfsm.v1.{job}.9", data)
    await client.close()
    await _store(url, history)
