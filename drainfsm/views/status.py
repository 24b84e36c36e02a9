"""One job as it stands now: its newest attempt, and what the rule would say about a notice."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Budget, Stage
from drainfsm.core.deadline import budget_of
from drainfsm.core.decide_save import does_not_fit
from drainfsm.core.fold import evolve
from drainfsm.core.records import Record
from drainfsm.core.state import Phase, State, first_state
from drainfsm.core.text import printable, span
from drainfsm.views.attempts import COMMITS
from drainfsm.views.replay import AttemptLog, replay_attempt
from drainfsm.views.sources import BlindSource, sources_of

CLOCKS_APART_MS = 5_000
"""A record from further ahead is no matter of a moment: its writer's clock is another one."""

BLIND_SHOWN = 10


class Outlook(enum.StrEnum):
    """Of the save of a drain that is open."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    COMMITTED = "committed"
    GIVEN_UP = "given up"
    """It was skipped or abandoned: the job leaves on an earlier commit."""


def outlook(state: State, budget: Budget) -> Outlook:
    """``budget``: of now. While it leaves, only the exit margin is left in it."""
    if state.phase is Phase.PUBLISHED:
        return Outlook.COMMITTED
    if state.phase is Phase.LEAVING:
        return Outlook.GIVEN_UP
    return Outlook.FITS if budget.fits else Outlook.DOES_NOT_FIT


class NoticeForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a notice that came now."""

    window_ms: int
    budget: Budget
    """At the coordinator's decision: the handler's allowance is spent."""

    reason: str
    """Why the save would be skipped; empty: it would be made."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A job's newest attempt, as it stands now."""

    job_id: str
    epoch: int
    phase: Phase
    """``idle``: no drain is open, the job runs (or has ended: ``exit_code``)."""

    node_count: int
    world_size: int
    """0: not all ranks are there."""

    healthy_step: int | None
    committed_step: int | None
    committed_generation_id: str | None
    commit_age_ms: int | None
    """None: this attempt has committed nothing."""

    drain_id: str | None
    remaining_ms: int | None
    """To the deadline of the drain that is open."""

    exit_code: int | None
    fenced_by: int | None
    last_record_age_ms: int
    save_bytes: int
    sample_count: int
    step_ms: int
    """Longest step of the ranks, as far as the newest notice in the log tells; 0: none does."""

    blind: tuple[BlindSource, ...]
    """Sources that cannot tell now."""

    answers: tuple[NoticeForecast, ...]
    """Empty: the attempt is over, it drains, or its ranks are not there yet."""


def status(
    logs: Sequence[AttemptLog], *, now_unix_ms: int, windows_ms: Sequence[int] = ()
) -> Status:
    """Of the newest attempt in the logs, which are all of one job and not empty."""
    newest = max(logs, key=lambda log: log.epoch)
    counted = replay_attempt(newest).counted
    state, committed_unix_ms = _folded(newest, counted)
    return status_of(
        state,
        blind=sources_of(counted).blind(),
        now_unix_ms=now_unix_ms,
        committed_unix_ms=committed_unix_ms,
        last_unix_ms=max((record.at_unix_ms for record in counted), default=None),
        windows_ms=windows_ms,
        step_ms=_step_ms(logs),
    )


def _step_ms(logs: Sequence[AttemptLog]) -> int:
    """What the agents measure is on record with every notice, of attempts before as well."""
    found = [
        event.step_ms
        for log in sorted(logs, key=lambda log: log.epoch)
        for record in log.records
        for event in record.events
        if isinstance(event, e.NoticeReceived) and event.step_ms
    ]
    return found[-1] if found else 0


def status_of(
    state: State,
    *,
    blind: tuple[BlindSource, ...],
    now_unix_ms: int,
    committed_unix_ms: int | None,
    last_unix_ms: int | None,
    windows_ms: Sequence[int] = (),
    step_ms: int = 0,
) -> Status:
    """Of one attempt that is folded already. ``committed_unix_ms``: its own newest commit."""
    attempt, drain = state.attempt, state.drain
    committed = attempt.committed
    active = drain is not None and state.phase.active
    return Status(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        phase=state.phase,
        node_count=attempt.node_count,
        world_size=attempt.world_size,
        healthy_step=attempt.healthy_step,
        committed_step=None if committed is None else committed.step,
        committed_generation_id=None if committed is None else committed.generation_id,
        commit_age_ms=None if committed_unix_ms is None else now_unix_ms - committed_unix_ms,
        drain_id=drain.drain_id if drain is not None and active else None,
        remaining_ms=drain.deadline_unix_ms - now_unix_ms if drain is not None and active else None,
        exit_code=attempt.exit_code,
        fenced_by=attempt.fenced_by,
        last_record_age_ms=0 if last_unix_ms is None else now_unix_ms - last_unix_ms,
        save_bytes=attempt.load.save_bytes,
        sample_count=len(attempt.samples),
        step_ms=step_ms,
        blind=blind,
        answers=tuple(_answers(state, now_unix_ms, windows_ms, step_ms)),
    )


def _folded(log: AttemptLog, counted: Sequence[Record]) -> tuple[State, int | None]:
    """The state, and when the newest commit of this attempt was made."""
    state, committed_unix_ms = first_state(job_id=log.job_id, epoch=log.epoch), None
    for record in counted:
        for event in record.events:
            if isinstance(event, e.UnknownFact):
                continue
            state = evolve(state, event)
            if isinstance(event, COMMITS):
                committed_unix_ms = record.at_unix_ms
    return state, committed_unix_ms


def _answers(
    state: State, now_unix_ms: int, windows_ms: Sequence[int], step_ms: int
) -> list[NoticeForecast]:
    attempt = state.attempt
    if not attempt.started or not attempt.world_size or attempt.exit_code is not None:
        return []
    if attempt.fenced_by is not None or state.phase is Phase.LOST:
        return []
    if state.phase.draining:
        return []  # a drain saves once: another notice can only shorten it
    found = []
    for window_ms in windows_ms:
        budget = budget_of(
            state,
            now_unix_ms=now_unix_ms + attempt.allowances.handler_ms,
            deadline_unix_ms=now_unix_ms + window_ms,
            clock_skew_ms=attempt.allowances.clock_skew_ms,
            stage=Stage.NOTICE,
            step_ms=step_ms,
        )
        reason = "" if budget.fits else does_not_fit(budget)
        found.append(NoticeForecast(window_ms=window_ms, budget=budget, reason=reason))
    return found


def status_text(found: Status) -> Iterator[str]:
    """One screen. What comes from others is escaped."""
    yield f"job {printable(found.job_id)}, attempt {found.epoch}: {headline(found)}"
    ranks = f"{found.world_size} ranks" if found.world_size else "ranks are not all there yet"
    heard = span(max(0, found.last_record_age_ms))
    yield f"  {found.node_count} node(s), {ranks}; last record {heard} ago"
    if ahead_ms := clock_ahead_ms(found):
        yield f"  its clock is {span(ahead_ms)} ahead of this one, and so are its deadlines"
    if found.committed_step is None:
        yield "  nothing is committed yet: a loss now loses everything"
    elif found.commit_age_ms is None:
        yield f"  last commit: step {found.committed_step}, of an earlier attempt"
    else:
        yield f"  last commit: step {found.committed_step}, {span(max(0, found.commit_age_ms))} ago"
    for blind in found.blind[:BLIND_SHOWN]:
        yield (
            f"  source {printable(blind.source)} on node {blind.node} cannot tell: "
            f"{printable(blind.detail)}"
        )
    if len(found.blind) > BLIND_SHOWN:
        yield f"  and {len(found.blind) - BLIND_SHOWN} more sources that cannot tell"
    for one in found.answers:
        word = "saved" if not one.reason else "skipped"
        room = one.budget.remaining_ms - one.budget.needed_ms
        why = one.reason or f"it leaves {span(room)} to spare"
        yield f"  a notice of {span(one.window_ms)} would be {word}, because {why}"
    if found.answers and found.step_ms:
        yield f"  (steps took up to {span(found.step_ms)} at the last notice in the log)"
    if found.answers and not found.sample_count:
        yield "  (no save is on record yet: sizes and times are assumed)"


def clock_ahead_ms(found: Status) -> int:
    """By how much the writer's clock is ahead of ours, at least; 0: it need not be."""
    ahead_ms = -found.last_record_age_ms
    return ahead_ms if ahead_ms > CLOCKS_APART_MS else 0


def headline(found: Status) -> str:
    """What comes from others is escaped."""
    if found.drain_id is not None and found.remaining_ms is not None:
        left = span(abs(found.remaining_ms))
        when = f"{left} to its deadline" if found.remaining_ms >= 0 else f"{left} past its deadline"
        return f"drain {printable(found.drain_id)} is {found.phase}, {when}"
    if found.exit_code is not None:
        return f"ended with exit code {found.exit_code}"
    if found.fenced_by is not None:
        return f"attempt {found.fenced_by} has taken the job over"
    if found.phase is Phase.LOST:
        return "lost"
    step = "" if found.healthy_step is None else f", healthy since step {found.healthy_step}"
    return f"running{step}"
