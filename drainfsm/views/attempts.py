"""One attempt of a job in numbers, from its own log and what later attempts wrote about it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Sample
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.records import Content
from drainfsm.core.requeue import RefusedGeneration
from drainfsm.core.state import Phase
from drainfsm.views.replay import APPLIED, AttemptReplay, Line

F = TypeVar("F", bound=e.Fact)


class Ending(enum.StrEnum):
    """How an attempt ended, as far as the log says."""

    DRAINED = "drained"
    """A drain ended it: the job left for a notice, and wants to come back."""

    FINISHED = "finished"
    FAILED = "failed"
    """The job's own processes ended with another exit code than 0, and no drain made them."""

    LOST = "lost"
    """It went away without leaving: by its own log, or as a later attempt found."""

    SUPERSEDED = "superseded"
    """It lived, and a newer attempt took the job over."""

    OPEN = "open"
    """The log has no end of it: it runs, or nobody recorded how it ended."""


class DrainReport(msgspec.Struct, frozen=True, kw_only=True):
    drain_id: str
    outcome: str
    """``committed``, ``skipped``, ``abandoned``, ``cancelled``, ``lost``, ``left`` (it left
    without deciding on a save), ``ended`` (the job ended by itself before) or ``open``."""

    cause: str
    noticed_unix_ms: int
    window_ms: int | None
    """From the first notice to the deadline as it stood at the end."""

    remaining_ms: int | None
    """Time to the deadline when no process was left; negative: it was missed."""

    sources: tuple[str, ...] = ()
    """Of its notices."""

    phases_ms: dict[str, int] = {}
    """``cordon``, ``quiesce``, ``stage``, ``durable`` and ``commit``, as far as it got."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt in numbers."""

    job_id: str
    epoch: int
    ending: Ending
    reason: str
    noticed: bool
    """A notice was in force when it ended."""

    started_unix_ms: int | None
    ended_unix_ms: int | None
    """No process left; of a lost attempt, its last sign of life. None: it has not ended."""

    exit_code: int | None
    world_size: int = 0
    """Ranks; 0: they were never all there."""

    restored_step: int | None
    restored_generation_id: str | None
    restore_ms: int | None
    restored_in_place_of: tuple[RefusedGeneration, ...]
    """Generations that should have been restored, and were damaged; the recorded one first."""

    not_restored: tuple[str, ...]
    """Parts that started anew, because another number of ranks had saved them."""

    restore_refused: tuple[e.RestoreRefused, ...]
    """Why ranks ended instead of restoring."""

    healthy_after_ms: int | None
    """From the start to the first step that completed on every rank; None: there was none."""

    commit_count: int
    failed_save_count: int
    save_failure: str
    """Why the last one failed; empty: none did."""

    committed_step: int | None
    requeue_delay_ms: int | None = None
    """From the end to the start of the next attempt."""

    checkpoint_age_ms: int | None = None
    """Of a lost or failed attempt: from the job's last commit to the last sign of life. A lost
    attempt may have lived longer, at most up to ``checkpoint_age_ms_max``."""

    checkpoint_age_ms_max: int | None = None
    """From the job's last commit to the start of the next attempt."""

    work_lost_ms: int
    """Training time that no commit of the attempt covers."""

    steps_lost: int | None
    """Steps that no commit covers; None: the log does not say how far the ranks were."""

    drains: tuple[DrainReport, ...]

    @property
    def saves_nothing(self) -> bool:
        """It tries to save, and nothing of it was ever committed."""
        return self.failed_save_count > 0 and self.commit_count == 0

    @property
    def got_healthy(self) -> bool:
        return self.healthy_after_ms is not None and not self.saves_nothing


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the lines of one attempt say."""

    lines: tuple[Line, ...]
    replay: AttemptReplay
    places: dict[type, list[int]]
    """By class of the event: where in ``lines``."""

    samples: tuple[Sample, ...]
    commits_unix_ms: tuple[int, ...]

    def first(self, *kinds: type[e.Fact]) -> Line | None:
        found = [self.places[kind][0] for kind in kinds if kind in self.places]
        return self.lines[min(found)] if found else None

    def last(self, *kinds: type[e.Fact]) -> Line | None:
        found = [self.places[kind][-1] for kind in kinds if kind in self.places]
        return self.lines[max(found)] if found else None

    def all(self, kind: type[F]) -> tuple[F, ...]:
        events = (self.lines[place].event for place in self.places.get(kind, ()))
        return tuple(event for event in events if isinstance(event, kind))

    def count(self, *kinds: type[e.Fact]) -> int:
        return sum(len(self.places.get(kind, ())) for kind in kinds)


MILESTONES: tuple[tuple[type[e.Fact], str], ...] = (
    (e.NoticeReceived, "notice"),
    (e.NodeCordoned, "cordoned"),
    (e.StopStepAgreed, "step agreed"),
    (e.RanksQuiesced, "quiesced"),
    (e.BytesStaged, "staged"),
    (e.Durable, "durable"),
    (e.ManifestPublished, "published"),
    (e.SaveSkipped, "skipped"),
    (e.SaveAbandoned, "abandoned"),
    (e.Exited, "exited"),
    (e.DrainCancelled, "cancelled"),
    (e.AttemptLost, "lost"),
)
"""What ends a phase of a drain, the first time that it comes."""

COMMITS = (e.ManifestPublished, e.CheckpointCommitted)


def see(replay: AttemptReplay) -> Seen:
    lines = tuple(line for line in replay.lines if line.outcome == APPLIED)
    places: dict[type, list[int]] = {}
    for place, line in enumerate(lines):
        places.setdefault(type(line.event), []).append(place)
    commits = [
        lines[place] for place in sorted(p for kind in COMMITS for p in places.get(kind, ()))
    ]
    return Seen(
        lines=lines,
        replay=replay,
        places=places,
        samples=tuple(
            line.event.sample
            for line in commits
            if isinstance(line.event, e.ManifestPublished | e.CheckpointCommitted)
        ),
        commits_unix_ms=tuple(line.at_unix_ms for line in commits),
    )


def attempt_report(seen: Seen, *, last_seen_unix_ms: int | None) -> AttemptReport:
    """``last_seen_unix_ms``: the last sign of life that a later attempt knew of."""
    final = seen.replay.final
    ending, reason = _ending(seen)
    ended = _ended_unix_ms(seen, ending, last_seen_unix_ms)
    started, healthy = seen.first(e.AttemptStarted), seen.first(e.HealthyStepReached)
    restored = seen.all(e.CheckpointRestored)
    restore = restored[-1] if restored else None
    return AttemptReport(
        job_id=final.job_id,
        epoch=final.epoch,
        ending=ending,
        reason=reason,
        noticed=_noticed(seen),
        started_unix_ms=started.at_unix_ms if started else None,
        ended_unix_ms=ended,
        exit_code=final.exit_code,
        world_size=worlds[-1].world_size if (worlds := seen.all(e.WorldFormed)) else 0,
        restored_step=restore.step if restore else None,
        restored_generation_id=restore.generation_id if restore else None,
        restore_ms=restore.restore_ms if restore else None,
        restored_in_place_of=restore.refused if restore else (),
        not_restored=restore.not_restored if restore else (),
        restore_refused=seen.all(e.RestoreRefused),
        healthy_after_ms=healthy.at_unix_ms - started.at_unix_ms if healthy and started else None,
        commit_count=len(seen.samples),
        failed_save_count=seen.count(e.CheckpointFailed, e.SaveAbandoned),
        save_failure=_save_failure(seen),
        committed_step=final.committed.step if final.committed else None,
        work_lost_ms=_work_lost_ms(seen, ending, ended),
        steps_lost=_steps_lost(seen, ending),
        drains=tuple(_drains(seen)),
    )


def _save_failure(seen: Seen) -> str:
    last = seen.last(e.CheckpointFailed, e.SaveAbandoned)
    failed = None if last is None else last.event
    return failed.reason if isinstance(failed, e.CheckpointFailed | e.SaveAbandoned) else ""


def _ending(seen: Seen) -> tuple[Ending, str]:
    final = seen.replay.final
    if left := seen.last(e.Exited, e.AttemptFinished):
        ending = own_ending(final.exit_code, in_drain=isinstance(left.event, e.Exited))
        if ending is Ending.DRAINED:
            return ending, _cause(seen, left.drain_id)
        return ending, f"exit code {final.exit_code}"
    if final.fenced_by is not None:
        return Ending.SUPERSEDED, f"epoch {final.fenced_by} took the job over"
    if final.lost:
        return Ending.LOST, final.lost
    return Ending.OPEN, ""


def own_ending(exit_code: int | None, *, in_drain: bool) -> Ending:
    """Of an attempt whose processes have ended."""
    if in_drain and exit_code == EX_TEMPFAIL:
        return Ending.DRAINED
    return Ending.FINISHED if exit_code == 0 else Ending.FAILED


def _ended_unix_ms(seen: Seen, ending: Ending, last_seen_unix_ms: int | None) -> int | None:
    if ending is Ending.OPEN or not seen.lines:
        return last_seen_unix_ms if ending is Ending.LOST else None
    left = seen.last(e.Exited, e.AttemptFinished)
    if left is not None:
        return left.at_unix_ms
    return max(seen.lines[-1].at_unix_ms, last_seen_unix_ms or 0)


def _noticed(seen: Seen) -> bool:
    """A drain was open at the end, or ended it. One that was cancelled is forgotten."""
    last = seen.last(e.NoticeReceived, e.DrainCancelled)
    return last is not None and isinstance(last.event, e.NoticeReceived)


def _work_lost_ms(seen: Seen, ending: Ending, ended: int | None) -> int:
    """From the step of the last commit (else the first healthy step) to where the ranks stopped."""
    healthy = seen.first(e.HealthyStepReached)
    if ended is None or ending is Ending.FINISHED or healthy is None:
        return 0
    since = healthy.at_unix_ms
    if seen.samples:
        sample = seen.samples[-1]
        since = max(since, seen.commits_unix_ms[-1] - sample.durable_ms - sample.commit_ms)
    published = seen.last(e.ManifestPublished)
    if published is not None and published.drain_id == seen.lines[-1].drain_id:
        return 0
    stopped = None
    if _noticed(seen):
        stopped = seen.last(e.RanksQuiesced) or seen.last(e.SaveSkipped, e.SaveAbandoned)
    return max(0, (stopped.at_unix_ms if stopped else ended) - since)


def _steps_lost(seen: Seen, ending: Ending) -> int | None:
    if ending is Ending.OPEN:
        return None
    if ending is Ending.FINISHED:
        return 0
    agreed, quiesced = seen.last(e.StopStepAgreed), seen.last(e.RanksQuiesced)
    if not _noticed(seen) or agreed is None or not isinstance(agreed.event, e.StopStepAgreed):
        return None
    step = max(node.max_step for node in agreed.event.nodes)
    if quiesced is not None and isinstance(quiesced.event, e.RanksQuiesced):
        step = max(step, quiesced.event.step)
    committed = seen.replay.final.committed
    return max(0, step - (committed.step if committed else -1))


def _drains(seen: Seen) -> Iterator[DrainReport]:
    lost = seen.replay.final.lost
    for drain_id in seen.replay.final.drains:
        lines = tuple(line for line in seen.lines if line.drain_id == drain_id)
        left = next((line.event for line in lines if isinstance(line.event, e.Exited)), None)
        deadline = lines[-1].deadline_unix_ms
        yield DrainReport(
            drain_id=drain_id,
            outcome=drain_outcome(
                {type(line.event) for line in lines},
                exit_code=left.exit_code if isinstance(left, e.Exited) else None,
                lost=bool(lost) or lines[-1].phase is Phase.LOST,
            ),
            cause=_cause(seen, drain_id),
            noticed_unix_ms=lines[0].at_unix_ms,
            window_ms=None if deadline is None else deadline - lines[0].at_unix_ms,
            remaining_ms=left.remaining_ms if isinstance(left, e.Exited) else None,
            sources=_notice_sources(lines),
            phases_ms=dict(filter(None, (phase_of(line.event) for line in lines))),
        )


def _notice_sources(lines: Sequence[Line]) -> tuple[str, ...]:
    heard = (line.event for line in lines if isinstance(line.event, e.NoticeReceived))
    return tuple(dict.fromkeys(event.notice.source for event in heard))


def phase_of(event: Content) -> tuple[str, int] | None:
    """What phase of a drain the event ends, and how long that took."""
    match event:
        case e.NodeCordoned(duration_ms=value_ms):
            return ("cordon", value_ms)
        case e.RanksQuiesced(quiesce_ms=value_ms):
            return ("quiesce", value_ms)
        case e.BytesStaged(staged_ms=value_ms):
            return ("stage", value_ms)
        case e.Durable(durable_ms=value_ms):
            return ("durable", value_ms)
        case e.ManifestPublished(commit_ms=value_ms):
            return ("commit", value_ms)
        case _:
            return None


_OUTCOMES: tuple[tuple[type[e.Fact], str], ...] = (
    (e.ManifestPublished, "committed"),
    (e.SaveAbandoned, "abandoned"),
    (e.SaveSkipped, "skipped"),
    (e.DrainCancelled, "cancelled"),
)
GOOD = frozenset({"committed", "cancelled", "ended"})
"""Outcomes that cost no work."""


def drain_outcome(kinds: AbstractSet[type], *, exit_code: int | None, lost: bool) -> str:
    """``kinds``: of its events. ``exit_code``: None: no process was seen to leave."""
    for kind, outcome in _OUTCOMES:
        if kind in kinds:
            return outcome
    if exit_code is not None:
        return "left" if exit_code == EX_TEMPFAIL else "ended"
    return "lost" if lost else "open"


def _cause(seen: Seen, drain_id: str) -> str:
    """Of the notice with the earliest deadline; the identity breaks ties, as in the state."""
    places = seen.places.get(e.NoticeReceived, ())
    notices = [
        event
        for event in (seen.lines[place].event for place in places)
        if isinstance(event, e.NoticeReceived) and event.drain_id == drain_id
    ]
    if not notices:
        return "unknown"
    return min(notices, key=lambda n: (n.deadline_unix_ms, n.notice.identity)).notice.cause
