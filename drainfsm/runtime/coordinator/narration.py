"""What the agent of node 0 says about its attempt: one line a turn of events."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from drainfsm.core import events as e
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.events import Event, snake_case
from drainfsm.core.text import printable

log = logging.getLogger("drainfsm.coordinator")
log.addHandler(logging.NullHandler())  # a program that has not set up logging hears nothing of it

TROUBLE = (
    e.AttemptFenced,
    e.AttemptLost,
    e.CheckpointFailed,
    e.QuiesceTimedOut,
    e.RequeueRecorded,
    e.RestoreRefused,
    e.SaveAbandoned,
    e.SaveSkipped,
    e.SourceUnknown,
)
"""Events whose line is a warning."""


def narrate(events: Iterable[Event]) -> None:
    """Log a line for each event that is worth one."""
    for event in events:
        if (line := line_of(event)) is not None:
            late = isinstance(event, e.Exited) and event.remaining_ms < 0
            level = logging.WARNING if late or isinstance(event, TROUBLE) else logging.INFO
            log.log(level, line, extra={"event": snake_case(type(event).__name__)})


def line_of(event: Event) -> str | None:
    """None: not worth a line. What others wrote is escaped and cut."""
    match event:
        case e.AttemptStarted(restore=restore):
            if restore is None or restore.generation_id is None:
                return "the job starts from the beginning"
            return f"the job resumes after step {restore.step} ({printable(restore.generation_id)})"
        case e.WorldFormed(world_size=world_size, restart=restart):
            return f"{world_size} rank(s) attached{' again' if restart else ''}"
        case e.CheckpointRestored(refused=(first, *_)):
            return (
                f"{first.generation_id} is damaged ({printable(first.reason)}): restored "
                f"{event.generation_id} (step {event.step}) instead"
            )
        case e.RestoreRefused(error=error, reason=reason):
            return (
                f"{printable(event.generation_id)} (step {event.step}) is not restored: "
                f"{error}: {printable(reason)}"
            )
        case e.CheckpointFailed(step=step, reason=reason):
            return f"the periodic save of step {step} failed: {printable(reason)}"
        case e.AttemptLost(epoch=epoch, reason=reason):
            return f"attempt {epoch} is lost: {printable(reason)}"
        case e.AttemptFinished(exit_code=exit_code):
            return _own_end(exit_code)
        case e.AttemptFenced(by_epoch=by_epoch):
            return f"attempt {by_epoch} has taken the job over: this one can publish nothing more"
        case e.RequeueRecorded(error=error) if error:
            return f"the requeue record was not written: {printable(error)}"
        case e.SourceUnknown(source="clock", node=node, detail=detail):
            return f"node {node}: {printable(detail)}"
        case e.SourceUnknown(source=source, node=node, detail=detail):
            return f"source {source} on node {node} cannot tell: {printable(detail)}"
        case _:
            return _line_of_drain(event)


def _line_of_drain(event: Event) -> str | None:
    match event:
        case e.NoticeReceived(notice=notice, budget=budget):
            left_s = (event.effective_deadline_unix_ms - budget.now_unix_ms) / 1_000
            identity = printable(notice.identity)
            return f"{notice.notice_class} notice {identity}: {left_s:.1f} s to the deadline"
        case e.NoticeNoted(notice=notice):
            return f"notice {notice.identity} is recorded, and starts no drain: {notice.detail}"
        case e.DrainDue(reason=reason):
            return f"the drain begins ({reason})"
        case e.DrainCancelled(reason=reason):
            return f"the drain is called off: {printable(reason)}"
        case e.StopStepAgreed(stop_step=stop_step):
            return f"all ranks stop after step {stop_step}"
        case e.QuiesceTimedOut(missing=missing):
            who = ", ".join(f"{m.name} ({m.phase})" for m in missing)
            return f"not stopped in time: {printable(who) or 'not known'}"
        case e.SaveStarted(step=step, budget=budget):
            return f"saving step {step}; {budget.save_budget_ms / 1_000:.1f} s are left for it"
        case e.SaveSkipped() | e.SaveAbandoned():
            at = "nothing" if event.restore_step is None else f"step {event.restore_step}"
            done = "skipped" if isinstance(event, e.SaveSkipped) else "abandoned"
            return f"the save is {done}: {printable(event.reason)}; newest commit: {at}"
        case e.ManifestPublished(step=step, generation_id=generation_id):
            return f"step {step} is committed ({generation_id})"
        case e.Exited(exit_code=exit_code) if exit_code != EX_TEMPFAIL:
            return _own_end(exit_code)
        case e.Exited(remaining_ms=remaining_ms):
            late = "after" if remaining_ms < 0 else "before"
            return f"the job has left, {abs(remaining_ms) / 1_000:.1f} s {late} the deadline"
        case _:
            return None


def _own_end(exit_code: int) -> str:
    return (
        f"the job ended by itself with exit code {exit_code}" if exit_code else "the job finished"
    )
