"""What the agent of node 0 says on stderr about its attempt: one line a turn of events."""

from __future__ import annotations

from drainfsm.core import events as e
from drainfsm.core.events import Event


def narrate(event: Event) -> str | None:
    """None: not worth a line."""
    match event:
        case e.AttemptStarted(restore=restore):
            if restore is None or restore.generation_id is None:
                return "the job starts from the beginning"
            return f"the job resumes after step {restore.step} ({restore.generation_id})"
        case e.WorldFormed(world_size=world_size, restart=restart):
            return f"{world_size} rank(s) attached{' again' if restart else ''}"
        case e.CheckpointRestored(refused=(first, *_)):
            return (
                f"{first.generation_id} is damaged ({first.reason}): restored "
                f"{event.generation_id} (step {event.step}) in place of it"
            )
        case e.RestoreRefused(error=error, reason=reason):
            return f"{event.generation_id} (step {event.step}) is not restored: {error}: {reason}"
        case e.CheckpointFailed(step=step, reason=reason):
            return f"the periodic save of step {step} came to nothing: {reason}"
        case e.AttemptLost(epoch=epoch, reason=reason):
            return f"attempt {epoch} is lost: {reason}"
        case e.AttemptFenced(by_epoch=by_epoch):
            return f"attempt {by_epoch} has taken the job over: this one can publish nothing more"
        case e.RequeueRecorded(error=error) if error:
            return f"the requeue record was not written: {error}"
        case e.SourceUnknown(source=source, node=node, detail=detail):
            return f"source {source} on node {node} cannot tell: {detail}"
        case _:
            return _narrate_drain(event)


def _narrate_drain(event: Event) -> str | None:
    match event:
        case e.NoticeReceived(notice=notice, budget=budget):
            left_s = (event.effective_deadline_unix_ms - budget.now_unix_ms) / 1_000
            return f"{notice.notice_class} notice {notice.identity}: {left_s:.1f} s to the deadline"
        case e.DrainDue(reason=reason):
            return f"the drain begins ({reason})"
        case e.DrainCancelled(reason=reason):
            return f"the drain is called off: {reason}"
        case e.StopStepAgreed(stop_step=stop_step):
            return f"all ranks stop after step {stop_step}"
        case e.QuiesceTimedOut(missing=missing):
            who = ", ".join(f"rank {m.rank} of node {m.node} ({m.phase})" for m in missing)
            return f"not stopped in time: {who or 'not known'}"
        case e.SaveStarted(step=step, budget=budget):
            return f"saving step {step}; {budget.save_budget_ms / 1_000:.1f} s are left for it"
        case e.SaveSkipped() | e.SaveAbandoned():
            at = "nothing" if event.restore_step is None else f"step {event.restore_step}"
            done = "skipped" if isinstance(event, e.SaveSkipped) else "abandoned"
            return f"the save is {done}: {event.reason}; what is committed: {at}"
        case e.ManifestPublished(step=step, generation_id=generation_id):
            return f"step {step} is committed ({generation_id})"
        case e.Exited(remaining_ms=remaining_ms):
            return f"the job has left, {remaining_ms / 1_000:.1f} s before the deadline"
        case _:
            return None
