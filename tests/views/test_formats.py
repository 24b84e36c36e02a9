"""Logs for the programs of others: read back by what reads CloudEvents and Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.events import UnknownFact, kind_of
from drainfsm.testing.scenario import Scenario
from drainfsm.views.history import read_file

HISTORIES = sorted((Path(__file__).parents[1] / "replay" / "histories").glob("*.jsonl"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_every_event_becomes_a_cloud_event(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "events.jsonl"
    argv = ["export", "--file", str(path), "--format", "cloudevents", "-o", str(written)]
    assert main(argv) == 0
    events = [(record, event) for record in read_file(path).records for event in record.events]
    identities = set()
    for line, (record, event) in zip(written.read_bytes().splitlines(), events, strict=True):
        headers = {"content-type": "application/cloudevents+json"}
        read = from_http_event(HTTPMessage(headers=headers, body=line))
        assert read.get_type() == f"drainfsm.v1.{kind_of(event)}"
        assert read.get_source() == f"/drainfsm/{record.job_id}/{record.epoch}"
        at = read.get_time()
        assert at is not None
        assert round(at.timestamp() * 1_000) == record.at_unix_ms
        identities.add((read.get_source(), read.get_id()))
    assert len(identities) == len(events)


def test_an_instant_that_no_calendar_holds_is_left_out(tmp_path: Path) -> None:
    path, written = tmp_path / "log.jsonl", tmp_path / "events.jsonl"
    path.write_bytes(
        encode_lines(replace(record, at_unix_ms=10**17) for record in Scenario().history)
    )
    for form in ("cloudevents", "parquet"):
        assert main(["export", "--file", str(path), "--format", form, "-o", str(written)]) == 0
    assert main(["export", "--file", str(path), "--format", "cloudevents", "-o", str(written)]) == 0
    assert all("time" not in json.loads(line) for line in written.read_text().splitlines())


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_every_event_becomes_a_row(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "events.parquet"
    assert main(["export", "--file", str(path), "--format", "parquet", "-o", str(written)]) == 0
    rows = pq.read_table(written).to_pylist()
    records = read_file(path).records
    events = [event for record in records for event in record.events]
    assert [row["kind"] for row in rows] == [kind_of(event) for event in events]
    assert [json.loads(row["event"])["kind"] for row in rows] == [row["kind"] for row in rows]
    assert rows[0]["at"].timestamp() * 1_000 == records[0].at_unix_ms
    assert not any(isinstance(event, UnknownFact) for event in events)
