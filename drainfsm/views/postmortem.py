"""One drain as a whole: notices, decisions with their arithmetic, phases, losses, the replacement.

``explain`` prints it as text; ``--json``, ``--markdown`` and ``--html`` are this, rendered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from drainfsm.core import events as e
from drainfsm.core.explain import explain
from drainfsm.core.rules import broken_rules, recompute
from drainfsm.core.state import State
from drainfsm.views.attempts import MILESTONES, AttemptReport, DrainReport
from drainfsm.views.replay import APPLIED, AttemptLog, AttemptReplay, Line, replay_job
from drainfsm.views.report import report_jobs
from drainfsm.views.what_if import DECISIONS, Decision, OtherSettings, states_before, under


class HeardNotice(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    """Since the drain's first notice, as all ``_ms`` instants here."""

    identity: str
    notice_class: str
    cause: str
    detail: str
    deadline_ms: int
    """The deadline that it sets."""

    nodes: tuple[str, ...]


class PhaseSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Up to a milestone: what happened between the one before and this one."""

    name: str
    from_ms: int
    to_ms: int


class DeadlineMove(msgspec.Struct, frozen=True, kw_only=True):
    at_ms: int
    deadline_ms: int


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What no commit covers."""

    steps: int | None
    """None: the log does not say how far the ranks were."""

    work_ms: int
    accelerator_count: int
    """Of the job; 0: not known."""

    accelerator_hours: float


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """What the next attempt in the log did."""

    epoch: int
    requeue_delay_ms: int | None
    restored_generation_id: str | None
    restored_step: int | None
    restore_ms: int | None
    healthy_after_ms: int | None
    """None: no step completed on every rank."""


class Postmortem(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    epoch: int
    drain_id: str
    outcome: str
    cause: str
    opened_unix_ms: int
    window_ms: int | None
    remaining_ms: int | None
    """Between the last process and the deadline; None: it is not over, negative: too late."""

    notices: tuple[HeardNotice, ...]
    deadlines: tuple[DeadlineMove, ...]
    decisions: tuple[Decision, ...]
    phases: tuple[PhaseSpan, ...]
    late: tuple[e.MissingRank, ...]
    lost: Lost
    replacement: Replacement | None
    warnings: tuple[str, ...]
    """Rules that the history breaks, and evaluations that do not add up."""

    sentences: tuple[str, ...]
    """The text of ``explain``."""

    @property
    def smallest_window_ms(self) -> int | None:
        """In which the rule would have held at every recorded decision. None: no decision was
        taken, or the save failed for another reason than the rule (late ranks, a failed write)."""
        if any(one.recorded.fits and one.kind != "save_decided" for one in self.decisions):
            return None
        return max((decision.window_ms for decision in self.decisions), default=None)


def postmortems(
    logs: Sequence[AttemptLog], *, epoch: int | None = None, what_if: OtherSettings | None = None
) -> list[Postmortem]:
    """Every drain of every attempt, or of one, in the order of the log."""
    reports = {
        (job.job_id, one.epoch): one for job in report_jobs(logs).jobs for one in job.attempts
    }
    found = []
    for replay in replay_job(logs):
        final = replay.final
        if epoch not in (None, final.epoch):
            continue
        own = reports[final.job_id, final.epoch]
        if own.drains:
            of = _Attempt(
                replay=replay,
                own=own,
                after=reports.get((final.job_id, final.epoch + 1)),
                what_if=what_if,
                before={} if what_if is None else states_before(replay.counted),
                warnings=tuple(broken_rules(replay.counted)),
                sentences=tuple(explain(replay.counted)),
            )
            found += [_postmortem(of, drain) for drain in own.drains]
    return found


class _Attempt(NamedTuple):
    """What the postmortems of an attempt's drains share."""

    replay: AttemptReplay
    own: AttemptReport
    after: AttemptReport | None
    what_if: OtherSettings | None
    before: Mapping[int, State]
    """The state before each decision, for ``what_if``."""

    warnings: tuple[str, ...]
    sentences: tuple[str, ...]


def _postmortem(of: _Attempt, drain: DrainReport) -> Postmortem:
    replay, own = of.replay, of.own
    lines = [
        one for one in replay.lines if one.drain_id == drain.drain_id and one.outcome == APPLIED
    ]
    opened = lines[0].at_unix_ms
    last = drain.drain_id == own.drains[-1].drain_id
    return Postmortem(
        job_id=own.job_id,
        epoch=own.epoch,
        drain_id=drain.drain_id,
        outcome=drain.outcome,
        cause=drain.cause,
        opened_unix_ms=opened,
        window_ms=drain.window_ms,
        remaining_ms=drain.remaining_ms,
        notices=tuple(_notices(lines, opened)),
        deadlines=tuple(_deadlines(lines, opened)),
        decisions=tuple(_decisions(of, lines, opened)),
        phases=tuple(_phases(lines, opened)),
        late=_late(lines),
        lost=_lost(replay, own) if last else _nothing_lost(replay),
        replacement=_replacement(own, of.after) if last else None,
        warnings=of.warnings,
        sentences=of.sentences,
    )


def _notices(lines: Sequence[Line], opened: int) -> list[HeardNotice]:
    return [
        HeardNotice(
            at_ms=line.at_unix_ms - opened,
            identity=line.event.notice.identity,
            notice_class=str(line.event.notice.notice_class),
            cause=line.event.notice.cause,
            detail=line.event.notice.detail,
            deadline_ms=line.event.deadline_unix_ms - opened,
            nodes=line.event.notice.nodes,
        )
        for line in lines
        if isinstance(line.event, e.NoticeReceived)
    ]


def _deadlines(lines: Sequence[Line], opened: int) -> list[DeadlineMove]:
    """The first, and whenever it moved earlier."""
    moves: list[DeadlineMove] = []
    for line in lines:
        if line.deadline_unix_ms is None:
            continue
        deadline_ms = line.deadline_unix_ms - opened
        if not moves or deadline_ms != moves[-1].deadline_ms:
            moves.append(DeadlineMove(at_ms=line.at_unix_ms - opened, deadline_ms=deadline_ms))
    return moves


def _decisions(of: _Attempt, lines: Sequence[Line], opened: int) -> list[Decision]:
    made = []
    for line in lines:
        event = line.event
        if not isinstance(event, DECISIONS):
            continue
        other = None
        if of.what_if is not None and id(event) in of.before:
            attempt = of.before[id(event)].attempt
            other = under(of.what_if, event.budget, attempt, opened_unix_ms=opened)
        made.append(
            Decision(
                kind=line.kind,
                reason="" if isinstance(event, e.SaveDecided) else event.reason,
                at_ms=event.budget.now_unix_ms - opened,
                recorded=event.budget,
                wrong=recompute(event.budget),
                other=other,
            )
        )
    return made


def _phases(lines: Sequence[Line], opened: int) -> list[PhaseSpan]:
    reached: list[tuple[str, int]] = []
    for kind, name in MILESTONES:
        at = next((one.at_unix_ms for one in lines if isinstance(one.event, kind)), None)
        if at is not None:
            reached.append((name, at - opened))
    reached.sort(key=lambda one: one[1])
    return [
        PhaseSpan(name=name, from_ms=from_ms, to_ms=to_ms)
        for (_, from_ms), (name, to_ms) in pairwise(reached)
    ]


def _late(lines: Sequence[Line]) -> tuple[e.MissingRank, ...]:
    return tuple(
        missing
        for line in lines
        if isinstance(line.event, e.QuiesceTimedOut)
        for missing in line.event.missing
    )


def _accelerators(replay: AttemptReplay) -> int:
    requeue = replay.final.requeue
    return 0 if requeue is None else requeue.capacity.accelerator_count


def _lost(replay: AttemptReplay, own: AttemptReport) -> Lost:
    count = _accelerators(replay)
    return Lost(
        steps=own.steps_lost,
        work_ms=own.work_lost_ms,
        accelerator_count=count,
        accelerator_hours=round(own.work_lost_ms / 3_600_000 * count, 3),
    )


def _nothing_lost(replay: AttemptReplay) -> Lost:
    """The drain was called off: the job trained on."""
    return Lost(steps=0, work_ms=0, accelerator_count=_accelerators(replay), accelerator_hours=0.0)


def _replacement(own: AttemptReport, after: AttemptReport | None) -> Replacement | None:
    if after is None:
        return None
    return Replacement(
        epoch=after.epoch,
        requeue_delay_ms=own.requeue_delay_ms,
        restored_generation_id=after.restored_generation_id,
        restored_step=after.restored_step,
        restore_ms=after.restore_ms,
        healthy_after_ms=after.healthy_after_ms,
    )
