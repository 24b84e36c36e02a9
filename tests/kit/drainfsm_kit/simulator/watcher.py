"""Reads the log of a running attempt as it grows, and holds it against the coordinator's state."""

from __future__ import annotations

from collections.abc import Callable

from drainfsm.core.fold import Fold
from drainfsm.core.state import Phase
from drainfsm.log.journal import Journal
from drainfsm.log.shipper import Shipper
from drainfsm.runtime.coordinator.coordinator import Coordinator


class Watcher:
    """The coordinator's follower, in front of the shipper."""

    def __init__(
        self, coordinator: Coordinator, journal: Journal, *, on_phase: Callable[[Phase], None]
    ) -> None:
        self.coordinator = coordinator
        self.journal = journal
        self.shipper: Shipper | None = None
        self.wrong: list[str] = []
        self._fold = Fold(job_id=journal.job_id, epoch=journal.epoch)
        self._on_phase = on_phase
        self._seen: set[Phase] = set()

    def poke(self) -> None:
        self._read()
        if self.shipper is not None:
            self.shipper.poke()

    def _read(self) -> None:
        records = self.journal.records
        if self._fold.position == len(records):
            return
        for record in records[self._fold.position :]:
            if not self._fold.read(record):
                self.wrong.append(f"I10: the coordinator's own record {record.id} is skipped")
            phase = self._fold.state.phase
            if phase not in self._seen:
                self._seen.add(phase)
                self._on_phase(phase)
        if self._fold.state != self.coordinator.state:
            self.wrong.append(
                f"I10: after {len(records)} records the fold of the journal is "
                f"{self._fold.state}, the coordinator's state {self.coordinator.state}"
            )
