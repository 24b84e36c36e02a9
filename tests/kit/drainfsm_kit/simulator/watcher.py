"""Reads the log of a running attempt as it grows, and holds it against the coordinator's state."""

from __future__ import annotations

from collections.abc import Callable

from drainfsm.core.events import AttemptStarted
from drainfsm.core.fold import Fold
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.state import Phase, State
from drainfsm.log.journal import Journal


class Watcher:
    """Told after every decision, before its effects."""

    def __init__(self, journal: Journal, *, on_phase: Callable[[Phase], None]) -> None:
        self.wrong: list[str] = []
        self.state: State | None = None
        """The coordinator's; None: nothing is on record yet."""

        self._journal = journal
        self._fold = Fold(job_id=journal.job_id, epoch=journal.epoch)
        self._on_phase = on_phase
        self._seen: set[Phase] = set()

    @property
    def journaled(self) -> bool:
        """False: its disk was full from the start, and the store has its records."""
        return bool(self._journal.records)

    @property
    def restore(self) -> RequeueRecord | None:
        """What the attempt was to restore, as its first record says."""
        first = self._journal.records[0].events[0]
        assert isinstance(first, AttemptStarted)
        return first.restore

    def recorded(self, state: State) -> None:
        self.state = state
        records = self._journal.records
        if self._fold.position == len(records):
            return
        for record in records[self._fold.position :]:
            if not self._fold.read(record):
                self.wrong.append(f"I10: the coordinator's own record {record.id} is skipped")
            phase = self._fold.state.phase
            if phase not in self._seen:
                self._seen.add(phase)
                self._on_phase(phase)
        if self._fold.state != state:
            self.wrong.append(
                f"I10: after {len(records)} records the fold of the journal is "
                f"{self._fold.state}, the coordinator's state {state}"
            )
