"""What live views know: every job of a log, folded record by record as they come.

One projection serves every viewer. It remembers where it stopped (``sequence``), so a reader that
lost its server goes on after the last record, and records that come twice change nothing.
"""

from __future__ import annotations

from collections import deque

import msgspec

from drainfsm.core import events as e
from drainfsm.core.events import kind_of
from drainfsm.core.fold import Fold
from drainfsm.core.records import Content, Record
from drainfsm.core.state import State
from drainfsm.errors import EventRefusedError
from drainfsm.views.attempts import COMMITS, MILESTONES
from drainfsm.views.measures import Measures
from drainfsm.views.sources import SourceLedger
from drainfsm.views.status import Status, status_of

EVENTS_KEPT = 500
"""Of one job: what an event tail can show."""

RECORDS_KEPT = 2_000
"""Of one attempt: what ``explain`` needs. An attempt with more is explained from its log."""


ATTEMPTS_KEPT = 2
"""Of one job, the newest: what came before is in the log, and counted in ``measures``."""

NAMES: dict[type, str] = dict(MILESTONES)

DECISIONS = frozenset(
    {
        "notice_received",
        "notice_withdrawn",
        "deadline_shortened",
        "stop_step_agreed",
        "ranks_quiesced",
        "quiesce_timed_out",
        "save_decided",
        "save_skipped",
        "save_abandoned",
        "durable",
        "manifest_published",
        "exited",
        "drain_cancelled",
        "attempt_started",
        "attempt_fenced",
        "attempt_lost",
        "attempt_finished",
        "restore_refused",
        "source_unknown",
        "source_recovered",
    }
)
"""Kinds that are told apart from the many: a job of a thousand nodes has as many of the others."""


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    at_unix_ms: int
    epoch: int
    kind: str
    event: Content
    note: str = ""
    """Why it did not count."""


class AttemptProjection:
    """One attempt, as far as its records have come."""

    def __init__(self, *, job_id: str, epoch: int) -> None:
        self.fold = Fold(job_id=job_id, epoch=epoch)
        self.records: list[Record] = []
        """Those that counted."""

        self.sources = SourceLedger()
        self.first_unix_ms: int | None = None
        self.last_unix_ms: int | None = None
        self.committed_unix_ms: int | None = None
        self.opened_unix_ms: int | None = None
        """When the newest drain was opened."""

        self.late: tuple[e.MissingRank, ...] = ()
        self.marks: dict[str, int] = {}
        """Milestones of the newest drain, and when it came to them."""

        self.deadlines: list[tuple[int, int]] = []
        """Of the newest drain: when, and to what instant, its deadline was set."""

    @property
    def whole(self) -> bool:
        """``records`` has all that counted."""
        return len(self.records) < RECORDS_KEPT

    @property
    def state(self) -> State:
        """What it runs with, its current drain, and how far that is."""
        return self.fold.state

    def read(self, record: Record) -> str:
        """Why the record does not count; empty: it did."""
        drains = self.state.drain_count
        try:
            if not self.fold.read(record):
                return "skipped: repeated, or its writer had not read the whole log"
        except EventRefusedError as error:
            return f"refused: {error}"
        if len(self.records) < RECORDS_KEPT:
            self.records.append(record)
        self.sources.read(record)
        self.first_unix_ms = self.first_unix_ms or record.at_unix_ms
        self.last_unix_ms = record.at_unix_ms
        if self.state.drain_count != drains:
            self.opened_unix_ms, self.late = record.at_unix_ms, ()
            self.marks, self.deadlines = {}, []
        self._mark(record)
        for event in record.events:
            if isinstance(event, COMMITS):
                self.committed_unix_ms = record.at_unix_ms
            elif isinstance(event, e.QuiesceTimedOut):
                self.late = event.missing
        return ""

    def _mark(self, record: Record) -> None:
        drain = self.state.drain
        if drain is None or self.opened_unix_ms is None:
            return
        if not self.deadlines or self.deadlines[-1][1] != drain.deadline_unix_ms:
            self.deadlines.append((record.at_unix_ms, drain.deadline_unix_ms))
        for event in record.events:
            if (name := NAMES.get(type(event))) is not None:
                self.marks.setdefault(name, record.at_unix_ms)


class JobProjection:
    """One job: its newest ``attempts`` by epoch, its last ``events``, and its ``measures``."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.attempts: dict[int, AttemptProjection] = {}
        self.version = 0
        """Goes up with every record, counted or not."""

        self.measures = Measures()
        self.events: deque[EventLine] = deque(maxlen=EVENTS_KEPT)
        self.decisions: deque[EventLine] = deque(maxlen=EVENTS_KEPT)
        """Those of a kind in ``DECISIONS``, and what did not count."""

    @property
    def newest(self) -> AttemptProjection:
        """The attempt of the highest epoch."""
        return self.attempts[max(self.attempts)]

    def read(self, record: Record) -> str:
        """Why the record does not count; empty: it did."""
        attempt = self.attempts.get(record.epoch)
        if attempt is None:
            attempt = AttemptProjection(job_id=record.job_id, epoch=record.epoch)
            self.attempts[record.epoch] = attempt
            for old in sorted(self.attempts)[:-ATTEMPTS_KEPT]:
                del self.attempts[old]
        self.version += 1
        note = attempt.read(record)
        if not note:
            self.measures.read(record)
        for event in record.events:
            line = EventLine(
                at_unix_ms=record.at_unix_ms,
                epoch=record.epoch,
                kind=kind_of(event),
                event=event,
                note=note,
            )
            self.events.append(line)
            if line.kind in DECISIONS or note:
                self.decisions.append(line)
        return note


class Projection:
    """Every job in the log: ``jobs``, by name, as far as its records have come."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobProjection] = {}
        self.sequence = 0
        """Of the stream: the last message that was read."""

        self.unreadable: deque[str] = deque(maxlen=3)
        self.unreadable_count = 0

    def read(self, record: Record, *, sequence: int = 0) -> bool:
        """Fold a record; False if it did not count. No content of a record can end a view."""
        if sequence and sequence <= self.sequence:
            return False
        self.sequence = max(self.sequence, sequence)
        job = self.jobs.setdefault(record.job_id, JobProjection(record.job_id))
        return not job.read(record)

    def read_garbage(self, why: str, *, sequence: int = 0) -> None:
        """A message that is not a record: it is counted, and the rest is read."""
        self.sequence = max(self.sequence, sequence)
        self.unreadable.append(why)
        self.unreadable_count += 1

    def by_urgency(self) -> list[JobProjection]:
        """Drains first, the nearest deadline first; then what was heard of last."""
        return sorted(self.jobs.values(), key=_urgency)

    def statuses(self, *, now_unix_ms: int) -> list[Status]:
        """Every job as it stands now, by urgency."""
        return [self.status(job, now_unix_ms=now_unix_ms) for job in self.by_urgency()]

    def status(self, job: JobProjection, *, now_unix_ms: int) -> Status:
        """One job as it stands now."""
        newest = job.newest
        return status_of(
            newest.state,
            blind=newest.sources.blind(),
            now_unix_ms=now_unix_ms,
            committed_unix_ms=newest.committed_unix_ms,
            last_unix_ms=newest.last_unix_ms,
        )


def _urgency(job: JobProjection) -> tuple[bool, int, str]:
    newest = job.newest
    drain = newest.state.drain
    if drain is not None and newest.state.phase.active:
        return (False, drain.deadline_unix_ms, job.job_id)
    return (True, -(newest.last_unix_ms or 0), job.job_id)
