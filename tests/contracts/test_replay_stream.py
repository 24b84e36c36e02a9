"""``replay`` of a job in the stream: all of it, or what belongs to one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from drainfsm.cli.main import main
from drainfsm.core.codec import encode, encode_lines
from drainfsm.core.events import AttemptLost
from drainfsm.core.records import Record, subject_of
from drainfsm.log import connect
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.stream import CREATE, create_request
from drainfsm.testing.scenario import NOON_UNIX_MS
from drainfsm_kit.logs import chained, records_of

JOB = "job"
LOST = Record(
    id="lost",
    job_id=JOB,
    epoch=2,
    follows=0,
    at_unix_ms=NOON_UNIX_MS,
    events=(AttemptLost(epoch=1, reason="silent"),),
)
LOG = [
    *records_of(JOB, 3),
    LOST,
    *records_of(JOB, 2, epoch=2, first=1),
    *records_of(JOB, 2, epoch=4),
]


@pytest.fixture
def url(own_nats_server: EmbeddedServer) -> str:
    async def fill(messages: Sequence[tuple[str, bytes]]) -> None:
        connection = await connect(own_nats_server.url, timeout_s=30)
        await connection.ensure_stream()
        for subject, data in messages:
            await connection.link.client.request(subject, data, timeout=30)
        await connection.close()

    stored = [(subject_of(job_id=JOB, epoch=one.epoch), encode(one)) for one in LOG]
    other = records_of("other", 1)[0]
    stored.append((subject_of(job_id=JOB, epoch=4), b"no record"))
    stored.append((subject_of(job_id=JOB, epoch=4), encode(other)))
    asyncio.run(fill(stored))
    return own_nats_server.url


def test_the_stream_shows_what_a_file_of_it_shows(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(encode_lines(LOG))
    for command in (["replay", "--json"], ["replay"], ["explain"]):
        for epoch in ([], ["--epoch", "1"], ["--epoch", "2"]):
            assert main([*command, *epoch, "--file", str(file)]) == 0
            wanted = capsys.readouterr().out
            code = main([*command, *epoch, "--job", JOB, "--nats", url])
            shown = capsys.readouterr()
            assert shown.out == wanted
            if epoch:
                assert (code, shown.err) == (0, ""), "the others' subjects are not read"
            else:
                assert code == 1
                assert "message 9 of the stream: " in shown.err
                assert "it says that it is of job 'other'" in shown.err


def test_an_attempt_that_is_not_there_is_told_with_those_that_are(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--job", JOB, "--nats", url, "--epoch", "7"]) == 2
    assert "--epoch 7: no such attempt; there are 1, 2, 4" in capsys.readouterr().err
    assert main(["replay", "--job", "none", "--nats", url, "--epoch", "7"]) == 2
    assert "no records of job none" in capsys.readouterr().err


@pytest.mark.parametrize("max_age_days", [0, 7])
def test_verify_knows_whether_the_stream_forgets(
    own_nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str], max_age_days: int
) -> None:
    records = chained(records_of(JOB, 4))

    async def fill() -> None:
        connection = await connect(own_nats_server.url, timeout_s=30)
        request = create_request(replicas=1, max_age_days=max_age_days)
        await connection.link.client.request(CREATE, request, timeout=30)
        await connection.ensure_stream()
        after = 0
        for record in records[2:]:
            after = await connection.append(record, after_sequence=after)
        await connection.close()

    asyncio.run(fill())
    assert main(["verify", "--job", JOB, "--nats", own_nats_server.url]) == 1
    told = capsys.readouterr()
    assert "records 0 to 1 are missing" in told.out
    assert ("keeps records for 7 days" in told.err) == bool(max_age_days)
