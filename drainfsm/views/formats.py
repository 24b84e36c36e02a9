"""A job's log for the programs of others: CloudEvents as JSON lines, and Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from drainfsm.core.events import Event, UnknownFact, kind_of
from drainfsm.core.records import Record
from drainfsm.views.history import History
from drainfsm.views.replay import replay_job

TYPE = "drainfsm.v1."
"""What the ``type`` of a CloudEvent begins with; the kind follows."""


def cloud_events(history: History) -> Iterator[bytes]:
    """By CloudEvents 1.0, structured, one JSON object a line; an event of the log each. ``source``
    and ``id`` together are unique, so that what is exported twice is known again."""
    for record in history.records:
        for number, event in enumerate(record.events):
            yield msgspec.json.encode(_cloud_event(record, number, event)) + b"\n"


def _cloud_event(record: Record, number: int, event: Event | UnknownFact) -> dict[str, Any]:
    at = _rfc3339(record.at_unix_ms)
    return {
        "specversion": "1.0",
        "id": f"{record.id}.{number}",
        "source": f"/drainfsm/{quote(record.job_id, safe='')}/{record.epoch}",
        "type": TYPE + kind_of(event),
        **({"time": at} if at else {}),
        "datacontenttype": "application/json",
        "data": event.body if isinstance(event, UnknownFact) else event,
    }


def _rfc3339(unix_ms: int) -> str | None:
    """None: no calendar holds the instant."""
    try:
        at = datetime.fromtimestamp(unix_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parquet(history: History) -> bytes:
    """A row an event, as ``replay`` shows it; the event itself as JSON text.

    Raises:
        ImportError: pyarrow is missing.
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    schema = pa.schema(
        [
            ("job_id", pa.string()),
            ("epoch", pa.int64()),
            ("position", pa.int64()),
            ("at", pa.timestamp("ms", tz="UTC")),
            ("kind", pa.string()),
            ("outcome", pa.string()),
            ("phase", pa.string()),
            ("drain_id", pa.string()),
            ("deadline", pa.timestamp("ms", tz="UTC")),
            ("event", pa.string()),
        ]
    )
    rows = [
        {
            "job_id": replay.final.job_id,
            "epoch": line.epoch,
            "position": line.position,
            "at": line.at_unix_ms,
            "kind": line.kind,
            "outcome": line.outcome,
            "phase": line.phase.value,
            "drain_id": line.drain_id or None,
            "deadline": line.deadline_unix_ms,
            "event": _text(line.event),
        }
        for replay in replay_job(history.logs)
        for line in replay.lines
    ]
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), written, compression="zstd")
    return written.getvalue()


def _text(event: Event | UnknownFact) -> str:
    body = event.body if isinstance(event, UnknownFact) else msgspec.json.encode(event)
    return bytes(body).decode()
