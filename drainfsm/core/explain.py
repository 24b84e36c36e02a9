"""Why a drain ended as it did, in sentences with the arithmetic. Reads the log, guesses nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from drainfsm.core import events as e
from drainfsm.core.budget import Budget
from drainfsm.core.fit import Fit, FitOver
from drainfsm.core.records import Record
from drainfsm.core.rules import broken_rules, drains_of, events_of, recompute
from drainfsm.core.text import printable

WIDTH = 12


def explain(records: Sequence[Record]) -> list[str]:
    """Lines that explain every drain in the records of one attempt.

    ``records`` are those that readers do not skip. Each decision is recomputed from its own
    numbers, and a history that breaks a rule says so.
    """
    lines = [line for event in _before_drains(records) for line in _explain_other(event)]
    drains = drains_of(records)
    if not drains:
        lines.append("No drain in these records.")
    for drain in drains:
        lines += _explain_drain(drain)
    lines += [f"WARNING: {wrong}" for wrong in broken_rules(records)]
    return lines


def _before_drains(records: Sequence[Record]) -> Iterator[e.Event]:
    return takewhile(lambda event: not isinstance(event, e.NoticeReceived), events_of(records))


def _explain_other(event: e.Event) -> Iterator[str]:
    """What happens outside drains: a restore that was refused or not quite what was recorded, and a
    save that had no room."""
    match event:
        case e.RestoreRefused():
            yield (
                f"Generation {event.generation_id} (step {event.step}) was not restored: rank "
                f"{event.rank} on node {event.node} ended with {printable(event.error)}: "
                f"{printable(event.reason)}"
            )
        case e.CheckpointRestored(refused=refused, not_restored=not_restored):
            if not refused and not not_restored:
                return
            yield f"Restored {event.generation_id} (step {event.step})."
            for one in refused:
                why = printable(one.reason)
                yield f"  instead of {one.generation_id}, which was refused: {why}"
            if not_restored:
                yield (
                    f"  saved by {event.saved_world_size} rank(s); these parts started anew: "
                    f"{printable(', '.join(not_restored))}"
                )
        case e.CheckpointFailed(memory=e.MemoryShortage() as memory):
            yield f"The periodic save of step {event.step} failed:"
            yield from _memory(memory)
        case _:
            pass


def _memory(memory: e.MemoryShortage | None) -> Iterator[str]:
    if memory is not None:
        yield (
            f"  host memory on {printable(memory.host)}: {memory.needed_bytes} bytes needed, "
            f"{memory.free_bytes} bytes free"
        )


def _explain_drain(drain: Sequence[e.Event]) -> Iterator[str]:
    first = drain[0]
    if not isinstance(first, e.NoticeReceived):
        raise AssertionError("a drain opens with a notice")
    opened = first.budget.now_unix_ms
    yield f"Drain {first.drain_id}"
    for event in drain:
        for line in _explain_event(event, opened_unix_ms=opened):
            yield f"  {line}"
    yield f"  Outcome: {_outcome(drain)}"


def _explain_event(event: e.Event, *, opened_unix_ms: int) -> Iterator[str]:
    match event:
        case e.NoticeReceived(notice=notice):
            window_ms = event.deadline_unix_ms - event.budget.now_unix_ms
            yield (
                f"Notice {printable(notice.identity)} ({notice.notice_class.value}, cause "
                f"{printable(notice.cause)}): "
                f"{window_ms} ms to its deadline, drain's deadline in "
                f"{event.effective_deadline_unix_ms - event.budget.now_unix_ms} ms."
            )
        case e.NoticeNoted(notice=notice):
            yield f"Notice {notice.identity} was recorded, and started no drain: {notice.detail}"
        case e.NoticeWithdrawn():
            identity = printable(f"{event.source}/{event.native_id}")
            yield f"Notice {identity} was withdrawn: {printable(event.reason)}"
        case e.DeadlineShortened():
            identity = printable(f"{event.source}/{event.native_id}")
            earlier_ms = event.from_unix_ms - event.to_unix_ms
            yield f"{identity} moved the deadline {earlier_ms} ms earlier."
        case e.DrainDue():
            yield f"The drain was due: {event.reason}."
        case e.NodeCordoned():
            detail = printable(event.detail)
            yield f"Cordon: {event.outcome} after {event.duration_ms} ms. {detail}".rstrip()
        case e.StopStepAgreed():
            yield (
                f"All {event.world_size} ranks were asked to stop after step {event.stop_step} "
                f"(longest step {event.step_ms} ms)."
            )
        case e.RanksQuiesced():
            yield f"All ranks held at step {event.step} after {event.quiesce_ms} ms."
        case e.QuiesceTimedOut():
            yield f"Not all ranks stopped within {event.waited_ms} ms:"
            for missing in event.missing:
                yield (
                    f"  {missing.name}: {printable(missing.phase)}, "
                    f"last completed step {missing.last_step}"
                )
        case e.SaveDecided():
            yield f"Saving step {event.step} as {event.generation_id}, because it fits:"
            yield from _arithmetic(event.budget)
        case e.SaveSkipped():
            yield f"The save was skipped: {printable(event.reason)}"
            yield from _arithmetic(event.budget)
            yield _restores(event.restore_generation_id, event.restore_step)
        case e.SaveAbandoned():
            yield f"The save {event.generation_id} was given up: {printable(event.reason)}"
            yield from _memory(event.memory)
            yield from _arithmetic(event.budget)
            yield _restores(event.restore_generation_id, event.restore_step)
        case e.BytesStaged() | e.Durable() | e.EntriesVerified() | e.ManifestPublished():
            yield _progress(event)
        case e.AttemptFenced():
            yield f"Fenced: epoch {event.by_epoch} has claimed the job."
        case e.Exited():
            nodes = "; ".join(
                f"node {node.node}: code {node.exit_code}"
                + (f", killed rank(s) {list(node.killed_ranks)}" if node.killed_ranks else "")
                for node in event.nodes
            )
            yield f"Exited with code {event.exit_code}, {event.remaining_ms} ms to spare. {nodes}"
        case _:
            yield from _explain_other(event)


def _progress(
    event: e.BytesStaged | e.Durable | e.EntriesVerified | e.ManifestPublished,
) -> str:
    match event:
        case e.BytesStaged():
            return f"Staged {event.staged_bytes} bytes after {event.staged_ms} ms."
        case e.Durable():
            return (
                f"Durable: {event.durable_bytes} bytes in {event.file_count} files "
                f"after {event.durable_ms} ms."
            )
        case e.EntriesVerified():
            return (
                f"Verified {event.verified_count} of {event.expected_count} files "
                f"in {event.verify_ms} ms."
            )
        case e.ManifestPublished():
            return f"Committed in slot {event.slot}, {event.commit_ms} ms after durable."


def _arithmetic(budget: Budget) -> Iterator[str]:
    """The rule, one term a line, recomputed."""
    yield f"  {'remaining':{WIDTH}}{budget.remaining_ms:>8} ms (skew {budget.clock_skew_ms} ms off)"
    for name, term in budget.terms:
        yield (
            f"  {name:{WIDTH}}{term.value_ms:>8} ms ({term.basis}, "
            f"{term.sample_count} of {term.samples_needed} samples)"
        )
        if term.fit is not None:
            yield f"    {_fit(term.fit)}"
    yield f"  {'exit margin':{WIDTH}}{budget.exit_margin_ms:>8} ms"
    verdict = "fits" if budget.fits else "does not fit"
    yield f"  {'needed':{WIDTH}}{budget.needed_ms:>8} ms: {verdict}"
    if wrong := recompute(budget):
        yield f"  WARNING: recomputed, this does not add up: {wrong}"


def _fit(fit: Fit) -> str:
    """The line that a duration was read from."""
    saves = f"{fit.sample_count} save(s) in this store, of {fit.bytes_min} to {fit.bytes_max} bytes"
    each = " a rank" if fit.over is FitOver.BYTES_PER_RANK else ""
    return (
        f"from {saves}{each}: {fit.fixed_ms} ms and {fit.ms_per_gib} ms a GiB, "
        f"for {fit.bytes_asked} bytes{each} {fit.value_ms} ms, plus the fixed cost"
    )


def _restores(generation_id: str | None, step: int | None) -> str:
    if generation_id is None:
        return "Nothing was committed before: the replacement starts afresh."
    return f"The replacement restores {generation_id} (step {step})."


def _outcome(drain: Sequence[e.Event]) -> str:
    for event in reversed(drain):
        match event:
            case e.Exited():
                break
            case e.DrainCancelled():
                return f"cancelled: {printable(event.reason)}"
            case e.AttemptLost():
                return f"lost: {printable(event.reason)}"
            case _:
                pass
    else:
        return "not over in these records."
    published = [event for event in drain if isinstance(event, e.ManifestPublished)]
    if published:
        return f"exited with step {published[0].step} committed."
    return "exited without a save."
