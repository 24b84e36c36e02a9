"""Decisions from the save to the commit record, and every way to give a save up."""

from __future__ import annotations

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Budget, Sample
from drainfsm.core.deadline import budget_of
from drainfsm.core.draft import Draft, reject
from drainfsm.core.state import SAVE_UNDER_WAY, DrainSave, Phase, State, generation_id, known


def does_not_fit(budget: Budget) -> str:
    """The arithmetic of a refusal, term by term."""
    terms = [f"{name} {term.value_ms}" for name, term in budget.terms]
    terms.append(f"exit {budget.exit_margin_ms}")
    return (
        f"remaining {budget.remaining_ms} ms is not more than "
        f"{' + '.join(terms)} = {budget.needed_ms} ms"
    )


def decide_save(draft: Draft) -> None:
    """All ranks hold at one step: save if it fits, else leave on what was committed."""
    state = draft.state
    budget = budget_of(state, now_unix_ms=draft.now_unix_ms)
    if not budget.fits:
        skip(draft, does_not_fit(budget), budget=budget)
        return
    step = known(state.stop).step
    saver = f"d{draft.drain.number}"
    generation = generation_id(epoch=state.attempt.epoch, step=step, saver=saver)
    draft.add(e.SaveDecided(generation_id=generation, step=step, budget=budget))
    draft.add(e.SaveStarted(generation_id=generation, step=step, budget=budget))


def skip(draft: Draft, reason: str, *, budget: Budget) -> None:
    committed = draft.state.attempt.committed
    draft.add(
        e.SaveSkipped(
            reason=reason,
            budget=budget,
            restore_generation_id=committed.generation_id if committed else None,
            restore_step=committed.step if committed else None,
        )
    )


def give_up(draft: Draft, reason: str, *, memory: e.MemoryShortage | None = None) -> None:
    """Give the save up, however far it is. Does nothing once it is published or given up."""
    state = draft.state
    budget = budget_of(state, now_unix_ms=draft.now_unix_ms) if state.phase.active else None
    if budget is None:
        return
    if state.phase in (Phase.NOTICED, Phase.QUIESCING, Phase.QUIESCED):
        skip(draft, reason, budget=budget)
    elif state.phase in SAVE_UNDER_WAY:
        committed = state.attempt.committed
        draft.add(
            e.SaveAbandoned(
                generation_id=known(state.save).generation_id,
                reason=reason,
                budget=budget,
                restore_generation_id=committed.generation_id if committed else None,
                restore_step=committed.step if committed else None,
                memory=memory,
            )
        )


def recheck(draft: Draft) -> None:
    """Evaluate the rule again with the terms still to come (the deadline moved, or time passed)."""
    state = draft.state
    if state.phase is Phase.NOTICED and draft.drain.hold is None:
        return  # evaluated when the cordon is done
    if state.phase in (Phase.NOTICED, Phase.QUIESCING, Phase.QUIESCED, *SAVE_UNDER_WAY):
        budget = budget_of(state, now_unix_ms=draft.now_unix_ms)
        if not budget.fits:
            give_up(draft, does_not_fit(budget))


def report_staged(draft: Draft, given: i.ReportStaged) -> None:
    state, save = draft.state, _save_of(draft, given)
    if save is None or state.phase is not Phase.SAVING:
        return
    _require_all_ranks(state, given, given.rank_count)
    draft.add(
        e.BytesStaged(
            generation_id=given.generation_id,
            staged_bytes=given.staged_bytes,
            rank_count=given.rank_count,
            staged_ms=draft.now_unix_ms - save.from_unix_ms,
        )
    )
    recheck(draft)


def report_durable(draft: Draft, given: i.ReportDurable) -> None:
    state, save = draft.state, _save_of(draft, given)
    if save is None:
        return
    if state.phase is Phase.SAVING:
        raise reject(state, given, "the bytes were not reported staged")
    if state.phase is not Phase.STAGED:
        return
    _require_all_ranks(state, given, given.rank_count)
    recheck(draft)
    if draft.state.phase is not Phase.STAGED:
        return
    draft.add(
        e.Durable(
            generation_id=given.generation_id,
            durable_bytes=given.durable_bytes,
            file_count=given.file_count,
            durable_ms=draft.now_unix_ms - save.from_unix_ms,
        )
    )


def report_verified(draft: Draft, given: i.ReportVerified) -> None:
    state, save = draft.state, _save_of(draft, given)
    if save is None:
        return
    if state.phase in (Phase.SAVING, Phase.STAGED):
        raise reject(state, given, "the bytes were not reported durable")
    if state.phase is not Phase.DURABLE or save.verified:
        return
    written = known(save.written)
    counts = (given.verified_count, given.expected_count, given.verified_bytes)
    if counts != (written.file_count, written.file_count, written.total_bytes):
        give_up(
            draft,
            f"verified {given.verified_count} of {given.expected_count} files and "
            f"{given.verified_bytes} bytes; the ranks reported {written.file_count} files and "
            f"{written.total_bytes} bytes",
        )
        return
    draft.add(
        e.EntriesVerified(
            generation_id=given.generation_id,
            expected_count=given.expected_count,
            verified_count=given.verified_count,
            verified_bytes=given.verified_bytes,
            verify_ms=draft.now_unix_ms - written.at_unix_ms,
        )
    )
    recheck(draft)


def report_published(draft: Draft, given: i.ReportPublished) -> None:
    """The commit record exists: a fact, whatever was decided meanwhile."""
    state, save = draft.state, _save_of(draft, given)
    if save is None:
        return
    if save.written is None or not save.verified:
        raise reject(state, given, "the entries were not verified")
    commit_ms = draft.now_unix_ms - save.written.at_unix_ms
    sample = Sample(
        world_size=state.attempt.world_size,
        save_bytes=save.written.total_bytes,
        store=state.attempt.store,
        durable_ms=save.written.at_unix_ms - save.from_unix_ms,
        commit_ms=commit_ms,
        quiesce_ms=known(state.stop).quiesce_ms,
    )
    if state.phase is Phase.DURABLE:
        draft.add(
            e.ManifestPublished(
                generation_id=given.generation_id,
                manifest_digest=given.manifest_digest,
                slot=given.slot,
                step=save.step,
                world_size=state.attempt.world_size,
                commit_ms=commit_ms,
                sample=sample,
            )
        )
    elif state.phase is Phase.LEAVING:
        checkpoint_committed(
            draft,
            e.CheckpointCommitted(
                generation_id=given.generation_id,
                manifest_digest=given.manifest_digest,
                slot=given.slot,
                step=save.step,
                sample=sample,
            ),
        )


def report_save_failed(draft: Draft, given: i.ReportSaveFailed) -> None:
    if _save_of(draft, given) is not None:
        give_up(draft, given.reason, memory=given.memory)


def checkpoint_committed(draft: Draft, fact: e.CheckpointCommitted) -> None:
    """A save was published outside of a drain's countdown. One that comes late, or again, takes
    nothing back: slots tell which of two is newer."""
    state = draft.state
    over = state.phase in (Phase.EXITED, Phase.LOST)
    committed = state.attempt.committed
    if not over and (committed is None or fact.slot > committed.slot):
        draft.add(fact)


SaveReport = (
    i.ReportStaged | i.ReportDurable | i.ReportVerified | i.ReportPublished | i.ReportSaveFailed
)


def _save_of(draft: Draft, given: SaveReport) -> DrainSave | None:
    """The save that the report is about; None: the report is late, its drain is over.

    Raises:
        InputRejectedError: no save was started, or it is not this one.
    """
    state, save = draft.state, draft.state.save
    if save is None:
        raise reject(state, given, "no save was started")
    if given.generation_id != save.generation_id:
        raise reject(
            state, given, f"{given.generation_id} is not the drain's save {save.generation_id}"
        )
    return None if state.phase.over else save


def _require_all_ranks(state: State, given: SaveReport, rank_count: int) -> None:
    if rank_count != state.attempt.world_size:
        raise reject(state, given, f"{rank_count} rank(s) of {state.attempt.world_size} reported")
