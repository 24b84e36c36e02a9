"""An agent may write what it likes, but below its own job's subjects only: a record that says that
it is of another job counts for no reader of all jobs, and ends none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.codec import encode
from drainfsm.core.records import Record, subject_of
from drainfsm.log import connect
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.views.jobs import jobs_of_stream
from drainfsm.views.watch import Reader
from drainfsm_kit.logs import records_of

VICTIM = records_of("victim", 3)
FORGED = [
    replace(VICTIM[2], id="forged"),
    replace(VICTIM[0], id="odd", job_id="../../elsewhere"),
    replace(VICTIM[0], id="absolute", job_id="/elsewhere"),
]


@pytest.fixture
def url(own_nats_server: EmbeddedServer) -> str:
    """Forged records stand before the right ones that they would displace."""
    sent = [
        *((subject_of(job_id="victim", epoch=1), record) for record in VICTIM[:2]),
        *((subject_of(job_id="forger", epoch=1), record) for record in FORGED),
        (subject_of(job_id="victim", epoch=1), VICTIM[2]),
    ]

    async def publish() -> None:
        connection = await connect(own_nats_server.url, timeout_s=10)
        await connection.ensure_stream()
        for subject, record in sent:
            await connection.link.client.jetstream().publish(subject, encode(record))
        await connection.close()

    asyncio.run(publish())
    return own_nats_server.url


def test_followers_of_all_jobs_pass_it_over(url: str) -> None:
    async def scene() -> list[Record]:
        connection = await connect(url, timeout_s=10)
        found = []
        async for record in connection.follow():
            found.append(record)
            if len(found) == len(VICTIM):
                break
        await connection.close()
        return found

    assert asyncio.run(scene()) == VICTIM


def test_views_of_all_jobs_count_it_as_no_record(url: str, tmp_path: Path) -> None:
    reader = Reader(clock=lambda: 1, nats=url, state_dir=tmp_path)
    asyncio.run(reader.once())
    assert list(reader.projection.jobs) == ["victim"]
    assert reader.projection.jobs["victim"].newest.records == VICTIM
    assert reader.projection.unreadable_count == len(FORGED)


def test_reports_over_all_jobs_name_it(url: str) -> None:
    histories = list(jobs_of_stream(url))
    assert [record for one in histories for record in one.records] == VICTIM
    assert "says that it is of job 'victim'" in histories[0].damage


def test_the_archive_of_others_goes_on(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    argv = ["export", "--archive", str(archive), "--nats", url, "--older-than", "2100-01-01"]
    assert main(argv) == 1
    assert "says that it is of job '../../elsewhere'" in capsys.readouterr().err
    files = [path for path in tmp_path.rglob("*.jsonl") if path.is_file()]
    assert [path.relative_to(archive) for path in files] == [Path("victim/000001.jsonl")]
    assert files[0].read_bytes().splitlines() == [encode(record) for record in VICTIM]
