"""How notice sources did, from the log."""

from __future__ import annotations

import pytest

from drainfsm.core.events import Event, SourceRecovered, SourceUnknown
from drainfsm.core.records import Record
from drainfsm.testing import Scenario
from drainfsm.views.projections import Projection
from drainfsm.views.sources import BlindSource, SourceHealth, sources_of

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
    health = sources_of(
        [
            record(30, silent("aws/spot", since_s=0)),
            record(31, silent("aws/spot", since_s=0)),
            record(40, SourceRecovered(source="aws/spot", node=0)),
            record(41, SourceRecovered(source="aws/spot", node=0)),
            record(90, silent("aws/spot", since_s=60), silent("aws/spot", since_s=60, node=1)),
        ]
    ).health
    assert health["aws/spot", 0] == SourceHealth(
        unknown_count=2, unknown_ms=40_000, unknown_since_unix_ms=T0 + 60_000, detail="503"
    )
    assert health["aws/spot", 1].unknown_count == 1


def test_a_source_that_always_told_has_no_line() -> None:
    assert sources_of([record(1, SourceRecovered(source="aws/spot", node=0))]).health == {}


def test_a_view_knows_what_is_blind_however_long_the_attempt_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drainfsm.views.projections.RECORDS_KEPT", 1)
    scenario, projection = Scenario(), Projection()
    scenario.when(silent("aws/spot", since_s=0))
    scenario.when(silent("gcp/preempted", since_s=5, node=1))
    scenario.when(SourceRecovered(source="aws/spot", node=0))
    for one in scenario.history:
        assert projection.read(one)
    (status,) = projection.statuses(now_unix_ms=T0)
    gone = BlindSource(source="gcp/preempted", node=1, since_unix_ms=T0 + 5_000, detail="503")
    assert status.blind == (gone,)
