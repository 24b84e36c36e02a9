"""What a job's records count up to: notices, drains, saves, and how long things took.

Pure, one record at a time. ``views/metrics.py`` gives it to Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque

import msgspec

from drainfsm.core import events as e
from drainfsm.core.notice import Cause, Notice
from drainfsm.core.records import Content, Record
from drainfsm.views.attempts import Ending, drain_outcome, own_ending, phase_of

BOUNDS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
"""Upper ends of the buckets: from a step to a long grace window."""

SOURCES_MAX = 32
"""Sources that are told apart; what comes after them counts as ``other``. A log may name any."""

FINISHED_KEPT = 200
"""Drains of a job that are listed, the newest."""

OTHER = "other"
CAUSES = frozenset(cause.value for cause in Cause)
ENDS = (e.Exited, e.DrainCancelled, e.AttemptLost)


class Distribution:
    """Durations by bucket, as a Prometheus histogram wants them."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, value_ms: int) -> None:
        value_s = value_ms / 1_000
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self.sum_s += value_s

    def add_all(self, other: Distribution) -> None:
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    def buckets(self) -> list[tuple[str, float]]:
        """Upper end and how many lie below it."""
        total, found = 0, []
        ends = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
        for end, count in zip(ends, self.counts, strict=True):
            total += count
            found.append((end, float(total)))
        return found


class DrainEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A drain that is over, in a line."""

    drain_id: str
    epoch: int
    opened_unix_ms: int
    ended_unix_ms: int
    cause: str
    outcome: str
    remaining_ms: int | None
    """To the deadline when no process was left; None: they were not seen to leave."""


class Measures:
    """Of one job, over all attempts whose records were read."""

    def __init__(self) -> None:
        self.started_count = 0
        self.ended: Counter[str] = Counter()
        """Attempts by ending."""

        self.fenced_count = 0

        self.notices: Counter[tuple[str, str]] = Counter()
        """By class and cause."""

        self.drains: Counter[tuple[str, str]] = Counter()
        """Drains that are over, by cause and outcome."""

        self.finished: deque[DrainEnd] = deque(maxlen=FINISHED_KEPT)
        self.deadline_missed_count = 0
        self.commits: Counter[str] = Counter()
        """``periodic`` or ``drain``."""

        self.save_failures: Counter[str] = Counter()
        self.restore_count = 0
        self.restore_refused_count = 0
        self.restore_fallback_count = 0
        self.source_unknown: Counter[str] = Counter()
        self.drain_phases: dict[str, Distribution] = {}
        self.periodic_phases: dict[str, Distribution] = {}
        self.restore = Distribution()
        self.to_healthy = Distribution()
        self.committed_unix_ms: int | None = None
        """The newest commit, of whichever attempt."""

        self._over: set[int] = set()
        self._open: dict[int, _OpenDrain] = {}
        self._started_unix_ms: dict[int, int] = {}
        self._blind: set[tuple[int, str, int]] = set()
        self._sources: set[str] = set()

    def read(self, record: Record) -> None:
        """One that counts."""
        for event in record.events:
            self._attempt(event, record)
            self._drain(event, record)
            self._save(event, record)
            self._source(event, record)

    def source(self, name: str) -> str:
        """The name by which it is counted."""
        if name not in self._sources and len(self._sources) >= SOURCES_MAX:
            return OTHER
        self._sources.add(name)
        return name

    def _attempt(self, event: Content, record: Record) -> None:
        started = self._started_unix_ms
        match event:
            case e.AttemptStarted():
                self.started_count += 1
                started[record.epoch] = record.at_unix_ms
            case e.HealthyStepReached() if record.epoch in started:
                self.to_healthy.add(record.at_unix_ms - started[record.epoch])
            case e.CheckpointRestored(restore_ms=restore_ms):
                self.restore_count += 1
                self.restore_fallback_count += bool(event.refused)
                self.restore.add(restore_ms)
            case e.RestoreRefused():
                self.restore_refused_count += 1
            case e.Exited(exit_code=code) | e.AttemptFinished(exit_code=code):
                self._end(record.epoch, own_ending(code, in_drain=isinstance(event, e.Exited)))
            case e.AttemptLost(epoch=epoch):
                self._end(epoch, Ending.LOST)
            case e.AttemptFenced():
                self.fenced_count += 1

    def _end(self, epoch: int, ending: Ending) -> None:
        """Once: a loss may be on record in the attempt's log and in the next one's."""
        if epoch not in self._over:
            self._over.add(epoch)
            self.ended[ending.value] += 1

    def _drain(self, event: Content, record: Record) -> None:
        epoch, open_drains = record.epoch, self._open
        if isinstance(event, e.NoticeReceived):
            if epoch not in open_drains:
                open_drains[epoch] = _OpenDrain(event.drain_id, record.at_unix_ms)
            drain = open_drains[epoch]
            identity = event.notice.identity
            if identity not in drain.notices:
                self.notices[_class_of(event.notice), _word(event.notice.cause)] += 1
            earliest = drain.notices.get(identity, (event.deadline_unix_ms, ""))[0]
            deadline = min(earliest, event.deadline_unix_ms)
            drain.notices[identity] = (deadline, _word(event.notice.cause))
        if isinstance(event, e.AttemptLost):
            epoch = event.epoch
        if (found := open_drains.get(epoch)) is None:
            return
        found.kinds.add(type(event))
        if isinstance(event, ENDS):
            del open_drains[epoch]
            left = event.exit_code if isinstance(event, e.Exited) else None
            outcome = drain_outcome(found.kinds, exit_code=left, lost=isinstance(event, ENDS[2]))
            self.drains[found.cause, outcome] += 1
            remaining_ms = event.remaining_ms if isinstance(event, e.Exited) else None
            self.deadline_missed_count += (remaining_ms or 0) < 0
            self.finished.append(
                DrainEnd(
                    drain_id=found.drain_id,
                    epoch=epoch,
                    opened_unix_ms=found.opened_unix_ms,
                    ended_unix_ms=record.at_unix_ms,
                    cause=found.cause,
                    outcome=outcome,
                    remaining_ms=remaining_ms,
                )
            )

    def _save(self, event: Content, record: Record) -> None:
        match event:
            case e.ManifestPublished():
                self._committed("drain", record)
            case e.CheckpointCommitted(sample=sample):
                self._committed("periodic", record)
                _add(self.periodic_phases, "durable", sample.durable_ms)
                _add(self.periodic_phases, "commit", sample.commit_ms)
            case e.CheckpointFailed():
                self.save_failures["periodic"] += 1
            case e.SaveAbandoned():
                self.save_failures["drain"] += 1
        if (took := phase_of(event)) is not None:
            _add(self.drain_phases, *took)

    def _committed(self, kind: str, record: Record) -> None:
        self.commits[kind] += 1
        self.committed_unix_ms = max(self.committed_unix_ms or 0, record.at_unix_ms)

    def _source(self, event: Content, record: Record) -> None:
        if isinstance(event, e.SourceUnknown):
            place = (record.epoch, event.source, event.node)
            if place not in self._blind:
                self._blind.add(place)
                self.source_unknown[self.source(event.source)] += 1
        elif isinstance(event, e.SourceRecovered):
            self._blind.discard((record.epoch, event.source, event.node))

    def blind(self, epoch: int) -> Counter[str]:
        """Of that attempt: nodes on which a source cannot tell now, by source; 0 for sources that
        recovered."""
        found: Counter[str] = Counter(dict.fromkeys(self.source_unknown, 0))
        found.update(self.source(name) for of, name, _ in self._blind if of == epoch)
        return found


class _OpenDrain:
    def __init__(self, drain_id: str, opened_unix_ms: int) -> None:
        self.drain_id = drain_id
        self.opened_unix_ms = opened_unix_ms
        self.kinds: set[type] = set()
        self.notices: dict[str, tuple[int, str]] = {}
        """By identity: the deadline, and the cause."""

    @property
    def cause(self) -> str:
        """Of the earliest deadline; the identity breaks ties, as in the state."""
        return min(self.notices.items(), key=lambda one: (one[1][0], one[0]))[1][1]


def _add(phases: dict[str, Distribution], phase: str, value_ms: int) -> None:
    phases.setdefault(phase, Distribution()).add(value_ms)


def _class_of(notice: Notice) -> str:
    return "soft" if notice.revocable else "hard"


def _word(cause: str) -> str:
    """Sources may state words of their own: they share one label."""
    return str(cause) if cause in CAUSES else OTHER
