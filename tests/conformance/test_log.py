"""What a journal, its shippers and a reader do is a behaviour of ``Log``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drainfsm.core.fold import Fold
from drainfsm.log.shipment import Shipment
from drainfsm_kit import traces
from drainfsm_kit.log_world import LEAKS, RECORDS, RELAPSES, SHIPPERS, Recorded, walk

WALKS = range(80)
Plant = Callable[[pytest.MonkeyPatch], None]
CONFIG = f"""SPECIFICATION TraceSpec
CONSTANTS
  Records = {RECORDS}
  Shippers = {{{", ".join(map(str, SHIPPERS))}}}
  Leaks = {LEAKS}
  Relapses = {RELAPSES}
  Fault = "none"
INVARIANT Told
"""

refused = partial(traces.refused, module="LogTrace", config=CONFIG)

pytestmark = [pytest.mark.tlc, pytest.mark.timeout(0)]


def traces_in(directory: Path) -> list[list[Recorded]]:
    found = []
    for seed in WALKS:
        (place := directory / f"{seed}").mkdir()
        found.append(walk(seed, place))
    return found


def test_runs_of_the_code_are_behaviours_of_the_model(
    models: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    walks = traces_in(tmp_path_factory.mktemp("journals"))
    assert refused(walks, models, tmp_path) == []
    taken = Counter(step["action"] for trace in walks for step in trace)
    assert all(taken[action] > 10 for action in ("Crash", "Doubt", "Relapse", "Drop"))
    assert any(trace[-1]["after"]["applied"] == RECORDS for trace in walks)


def _takes_all_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(shipment: Shipment, connection: Any, *, message_count: int) -> Any:
        async def believes() -> None:
            shipment.shipped_count, shipment._sequence = message_count, message_count

        return believes()

    monkeypatch.setattr(Shipment, "_scan", scan)


def _believes_its_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = Shipment._scan

    async def believes(shipment: Shipment, connection: Any, *, message_count: int) -> None:
        await scan(shipment, connection, message_count=message_count)
        messages = [message async for message in connection.delivered(shipment.subject)]
        ids = [record.id.encode() for record in shipment.records]
        for place, name in enumerate(ids, start=1):
            if messages and b'"' + name + b'"' in messages[-1].data:
                shipment.shipped_count = place

    monkeypatch.setattr(Shipment, "_scan", believes)


def _skipped_records_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Fold):
        def read_all(self, records: Any) -> int:
            return sum(self._read(record) for record in records)

        def _read(self, record: Any) -> int:
            super().read_all((record,))
            self.position += self.skipped
            self.skipped = 0
            return 0

    monkeypatch.setattr("drainfsm_kit.log_world.Fold", Counting)


@pytest.mark.parametrize(
    "plant",
    [
        _takes_all_for_its_own,
        _believes_its_last_record,
        _skipped_records_count,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_code_that_does_something_else_is_refused(
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    models: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plant(monkeypatch)
    assert refused(traces_in(tmp_path_factory.mktemp("journals")), models, tmp_path)
