"""How notice sources did, from the log."""

from __future__ import annotations

from drainfsm.core.events import Event, SourceRecovered, SourceUnknown
from drainfsm.core.records import Record
from drainfsm.views.sources import SourceHealth, source_health

T0 = 1_795_953_600_000


def record(at_s: int, *events: Event) -> Record:
    return Record(
        id=f"r{at_s}",
        job_id="llm",
        epoch=1,
        follows=0,
        at_unix_ms=T0 + at_s * 1_000,
        events=events,
    )


def silent(source: str, *, since_s: int, node: int = 0) -> SourceUnknown:
    return SourceUnknown(source=source, node=node, since_unix_ms=T0 + since_s * 1_000, detail="503")


def test_a_source_is_counted_once_for_each_time_and_measured_when_it_is_over() -> None:
    health = source_health(
        [
            record(30, silent("aws/spot", since_s=0)),
            record(31, silent("aws/spot", since_s=0)),
            record(40, SourceRecovered(source="aws/spot", node=0)),
            record(41, SourceRecovered(source="aws/spot", node=0)),
            record(90, silent("aws/spot", since_s=60), silent("aws/spot", since_s=60, node=1)),
        ]
    )
    assert health["aws/spot", 0] == SourceHealth(
        unknown_count=2, unknown_ms=40_000, unknown_since_unix_ms=T0 + 60_000, detail="503"
    )
    assert health["aws/spot", 1].unknown_count == 1


def test_a_source_that_always_told_has_no_line() -> None:
    assert source_health([record(1, SourceRecovered(source="aws/spot", node=0))]) == {}
