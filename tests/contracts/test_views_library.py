"""The programs of docs/dashboards.md that build on ``drainfsm.views``, as the page has them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core.records import Record
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.log.jetstream import connect
from drainfsm.log.journal import Journal, journal_path
from drainfsm.testing.scenario import Scenario
from drainfsm.views import Projection

PAGE = Path(__file__).parents[2] / "docs" / "dashboards.md"
FOLLOW, AFTERWARDS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
HEARD_S = 60.0


async def followed(url: str, projection: Projection, *, to_sequence: int) -> None:
    """Run the program of the page until it has read so far."""
    names: dict[str, Any] = {"__name__": "dashboard"}
    exec(FOLLOW, names)
    running = asyncio.ensure_future(names["follow"](url, projection))
    try:
        async with asyncio.timeout(HEARD_S):
            while projection.sequence < to_sequence and not running.done():
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def test_a_dashboard_follows_every_job_and_goes_on_where_it_stopped(
    own_nats_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url, projection = own_nats_server.url, Projection()
    first, second = Scenario(job_id="first").saving(), Scenario(job_id="second").saving()

    async def ship(records: list[Record]) -> int:
        connection = await connect(url, timeout_s=10)
        try:
            await connection.ensure_stream()
            sequence = 0
            for record in records:
                sequence = await connection.append(record, after_sequence=sequence)
            return sequence
        finally:
            await connection.close()

    async def run() -> None:
        last = await ship(first.history)
        await followed(url, projection, to_sequence=last)
        assert projection.sequence == last
        last = await ship(second.history)
        await followed(url, projection, to_sequence=last)
        assert projection.sequence == last

    asyncio.run(run())
    told = capsys.readouterr().out.splitlines()
    assert len(told) == len(first.history) + len(second.history)  # each once
    (last_of_first,) = {line for line in told if line.startswith("first/1: saving")}
    assert last_of_first.startswith("first/1: saving, step None committed, ")
    assert any(line.startswith("second/1: saving") for line in told)


def test_a_program_replays_and_reports_from_journals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(job_id="llm").saving()
    journal = Journal.open(journal_path(tmp_path, job_id="llm", epoch=1), job_id="llm", epoch=1)
    with contextlib.closing(journal):
        journal.append(*scenario.history)
    monkeypatch.setattr(sys, "argv", ["afterwards", str(tmp_path), "llm"])
    exec(AFTERWARDS, {"__name__": "__main__"})
    told = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("1 ") for line in told) == sum(
        len(record.events) for record in scenario.history
    )
    assert any(line.startswith("1 notice_received applied noticed ") for line in told)
    assert told[-1].startswith("Durations(count=0")
