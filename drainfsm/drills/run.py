"""Plays a scenario with a real job, and judges it."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from drainfsm.core import events as e
from drainfsm.core.events import kind_of
from drainfsm.core.rules import broken_rules
from drainfsm.drills.criteria import (
    CRITERIA,
    all_complete,
    cordoned_first,
    decision_count,
    decision_of,
    left_over,
)
from drainfsm.drills.errors import DrillError
from drainfsm.drills.job import DrillJob, DrillSettings
from drainfsm.drills.scenarios import SCENARIOS, Drilling
from drainfsm.errors import DrainfsmError
from drainfsm.store import open_store

NOBODY = "nats://127.0.0.1:9"
"""The discard port: no broker is there."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the timeline."""

    at_unix_ms: int
    epoch: int
    kind: str


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, played and judged."""

    scenario: str
    title: str
    decision: str
    struck: bool
    """The fault came in time; false: the save was quicker."""

    criteria: dict[str, bool | None]
    """None: there was nothing that could have met or broken it."""

    window_ms: int | None
    took_ms: int | None
    """From the first notice to no process left."""

    resumed_step: int | None
    left_over: tuple[str, ...]
    """Generations that nobody committed: staging data that `drainfsm gc` removes."""

    rules_broken: tuple[str, ...]
    note: str
    """Not empty: how it was played otherwise than its name says, and why."""

    problem: str
    """Not empty: the scenario could not be played to its end."""

    duration_s: float
    timeline: tuple[Moment, ...]

    @property
    def passed(self) -> bool:
        return not self.problem and not self.rules_broken and False not in self.criteria.values()


def play(name: str, root: Path, settings: DrillSettings) -> Judged:
    scenario, began, problem, struck = SCENARIOS[name], time.monotonic(), "", False
    job = DrillJob(root, settings)
    try:
        try:
            if scenario.disk is not None:
                job.put_store_on(scenario.disk)
            first = job.start(nats_url=NOBODY if name == "broker-down" else None)
            _trains(job)
            struck = scenario.play(job, first)
            _replace(job)
        finally:
            job.close()  # its store is a directory from here on
    except (DrainfsmError, OSError) as error:
        problem = str(error)
    return _judge(name, job, problem=problem, struck=struck, duration_s=time.monotonic() - began)


def _trains(job: DrillJob) -> None:
    """It has committed something to fall back on."""
    if not job.wait_for(e.CheckpointCommitted, epoch=1):
        raise DrillError(f"the job ended before its first checkpoint:\n{job.attempts[0].tail()}")


def _replace(job: DrillJob) -> None:
    """Another attempt, until it is healthy; where one runs, that one."""
    if all(attempt.poll() is not None for attempt in job.attempts):
        job.start()
    newest = len(job.attempts)
    if not job.wait_for(e.HealthyStepReached, epoch=newest):
        raise DrillError(f"the replacement ended:\n{job.attempts[-1].tail()}")


def _judge(name: str, job: DrillJob, *, problem: str, struck: bool, duration_s: float) -> Judged:
    scenario, events = SCENARIOS[name], job.events(1)
    decision = decision_of(events)
    notices = [event for event in events if isinstance(event, e.NoticeReceived)]
    deadline = min((one.effective_deadline_unix_ms for one in notices), default=None)
    opened = notices[0].budget.now_unix_ms if notices else None
    gone = _gone_unix_ms(job)
    resumed = [event.step + 1 for event in job.find(e.CheckpointRestored, 2)]
    timeline = [
        Moment(at_unix_ms=record.at_unix_ms, epoch=epoch, kind=kind_of(event))
        for epoch in range(1, len(job.attempts) + 1)
        for record in job.records(epoch)
        for event in record.events
    ]
    return Judged(
        scenario=name,
        title=scenario.title,
        decision=decision.what,
        struck=struck,
        criteria=_criteria(scenario, job, struck=struck),
        window_ms=None if deadline is None or opened is None else deadline - opened,
        took_ms=None if gone is None or opened is None else gone - opened,
        resumed_step=resumed[0] if resumed else None,
        left_over=_left_over(job),
        rules_broken=tuple(
            wrong
            for epoch in range(1, len(job.attempts) + 1)
            for wrong in broken_rules(job.records(epoch))
        ),
        note=job.note,
        problem=problem,
        duration_s=round(duration_s, 1),
        timeline=tuple(timeline),
    )


def _left_over(job: DrillJob) -> tuple[str, ...]:
    try:
        return left_over(open_store(str(job.store)), job_id=job.job)
    except DrainfsmError:
        return ()


def _criteria(scenario: Drilling, job: DrillJob, *, struck: bool) -> dict[str, bool | None]:
    events, ended_unix_ms = job.events(1), _gone_unix_ms(job)
    deadlines = [x.effective_deadline_unix_ms for x in events if isinstance(x, e.NoticeReceived)]
    allowed = (*scenario.decisions, *(() if struck else ("saved",)))
    count = 0 if decision_of(events).what in ("none", "cancelled") else 1
    inside = ended_unix_ms is not None and ended_unix_ms <= min(deadlines, default=0)
    new_nodes = {attempt.node for attempt in job.attempts[1:]}
    drained = {path.name for path in job.cordoned.iterdir()}
    verdicts: tuple[bool | None, ...] = (
        cordoned_first(events) and not new_nodes & drained if scenario.drains else None,
        decision_of(events).what in allowed and decision_count(events) == count,
        all_complete(open_store(str(job.store)), job_id=job.job),
        inside if scenario.drains else None,
        _valid_step(job),
    )
    return dict(zip(CRITERIA, verdicts, strict=True))


def _gone_unix_ms(job: DrillJob) -> int | None:
    return job.attempts[0].gone_unix_ms if job.attempts else None


def _valid_step(job: DrillJob) -> bool:
    """The newest attempt restored what the one before had left, and made a step after it."""
    newest = len(job.attempts)
    if newest <= 1:  # the notice was taken back: it never left
        return bool(job.find(e.HealthyStepReached, 1))
    started, restored = job.find(e.AttemptStarted, newest), job.find(e.CheckpointRestored, newest)
    if not started or not restored or started[0].restore is None:
        return False
    healthy = job.find(e.HealthyStepReached, newest)
    wanted = started[0].restore.step
    return bool(healthy) and restored[0].step == wanted and healthy[0].step > restored[0].step
