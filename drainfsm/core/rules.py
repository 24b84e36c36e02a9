"""The invariants of a drain as named predicates over one attempt's history.

One list serves the property tests, the simulator, the conformance tests and postmortems. A rule
takes the records that readers do not skip, in order, and answers what is wrong; empty: it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from drainfsm.core import events as e
from drainfsm.core.budget import Budget
from drainfsm.core.events import Event, UnknownFact
from drainfsm.core.records import Record

History = Sequence[Record]
Rule = Callable[[History], str]


def events_of(history: History) -> Iterator[Event]:
    for record in history:
        for event in record.events:
            if not isinstance(event, UnknownFact):
                yield event


def drains_of(history: History) -> list[list[Event]]:
    """The events of each drain, from the notice that opened it."""
    drains: list[list[Event]] = []
    opened: set[str] = set()
    for event in events_of(history):
        if isinstance(event, e.NoticeReceived) and event.drain_id not in opened:
            opened.add(event.drain_id)
            drains.append([])
        if drains:
            drains[-1].append(event)
    return drains


def deadline_never_increases(history: History) -> str:
    """I2: inside a drain the effective deadline only moves earlier."""
    for drain in drains_of(history):
        lowest: int | None = None
        for event in drain:
            match event:
                case e.NoticeReceived(effective_deadline_unix_ms=deadline):
                    pass
                case e.DeadlineShortened(to_unix_ms=deadline):
                    pass
                case _:
                    continue
            if lowest is not None and deadline > lowest:
                return f"I2: the deadline rose from {lowest} to {deadline}"
            lowest = deadline
    return ""


def budgets_count_against_the_deadline(history: History) -> str:
    """I2: no decision counts on a later deadline than the earliest that was accepted."""
    for drain in drains_of(history):
        lowest: int | None = None
        for event in drain:
            if isinstance(event, e.NoticeReceived):
                stated = event.deadline_unix_ms
                lowest = stated if lowest is None else min(lowest, stated)
            budget = getattr(event, "budget", None)
            if not isinstance(budget, Budget) or lowest is None:
                continue
            if budget.deadline_unix_ms > lowest:
                return f"I2: a decision counted on {budget.deadline_unix_ms}, not {lowest}"
    return ""


def at_most_one_save(history: History) -> str:
    """I3: one save a drain, and no generation is written by two saves."""
    generations: list[str] = []
    for drain in drains_of(history):
        started = [event for event in drain if isinstance(event, e.SaveStarted)]
        if len(started) > 1:
            return f"I3: {len(started)} saves in one drain"
        generations += [event.generation_id for event in started]
    if len(generations) != len(set(generations)):
        return "I3: a generation was written by two saves"
    return ""


def save_only_if_it_fits(history: History) -> str:
    """I4: a save starts only if the rule held, recomputed from the event's own numbers."""
    for event in events_of(history):
        if isinstance(event, e.SaveStarted | e.SaveDecided):
            if wrong := recompute(event.budget):
                return f"I4: {wrong}"
            if not event.budget.remaining_ms > event.budget.needed_ms:
                return f"I4: saved with {event.budget.remaining_ms} of {event.budget.needed_ms} ms"
    return ""


def recompute(budget: Budget) -> str:
    """What does not follow from its own inputs in a stored evaluation of the rule."""
    usable = budget.deadline_unix_ms - budget.clock_skew_ms
    remaining = max(0, usable - budget.now_unix_ms)
    needed = sum(term.value_ms for _, term in budget.terms) + budget.exit_margin_ms
    if remaining != budget.remaining_ms:
        return f"remaining {budget.remaining_ms} ms is not {remaining} ms"
    if needed != budget.needed_ms:
        return f"needed {budget.needed_ms} ms is not {needed} ms"
    if budget.fits is not (remaining > needed):
        return f"fits={budget.fits} with {remaining} against {needed} ms"
    return ""


def every_budget_adds_up(history: History) -> str:
    """I4: every evaluation of the rule in the log can be recomputed."""
    for event in events_of(history):
        budget = getattr(event, "budget", None)
        if isinstance(budget, Budget) and (wrong := recompute(budget)):
            return f"I4: {e.kind_of(event)}: {wrong}"
    return ""


def published_only_when_verified(history: History) -> str:
    """I5: durable, then every expected entry verified, then the commit record."""
    durable: e.Durable | None = None
    verified: e.EntriesVerified | None = None
    for event in events_of(history):
        match event:
            case e.SaveStarted():
                durable = verified = None
            case e.Durable():
                durable = event
            case e.EntriesVerified():
                verified = event
            case e.ManifestPublished(generation_id=generation):
                if durable is None or verified is None:
                    return f"I5: {generation} was published unverified"
                if not (durable.generation_id == verified.generation_id == generation):
                    return f"I5: {generation} was published on another save's evidence"
                if not (
                    verified.verified_count == verified.expected_count == durable.file_count
                    and verified.verified_bytes == durable.durable_bytes
                ):
                    return f"I5: {generation} was published incomplete"
            case _:
                pass
    return ""


def all_ranks_at_the_agreed_step(history: History) -> str:
    """I6: every expected node quiesced at the stop step, and that step is what is saved."""
    agreed: e.StopStepAgreed | None = None
    nodes: set[int] = set()
    for event in events_of(history):
        match event:
            case e.StopStepAgreed():
                agreed, nodes = event, set()
                highest = max(node.max_step for node in event.nodes)
                if event.stop_step != highest + 1:
                    return f"I6: stop step {event.stop_step} after a report of {highest}"
            case e.RankQuiesced(node=node, step=step):
                if agreed is None or step != agreed.stop_step:
                    return f"I6: node {node} quiesced at {step}"
                nodes.add(node)
            case e.SaveStarted(step=step) | e.ManifestPublished(step=step):
                if agreed is None or step != agreed.stop_step:
                    return f"I6: step {step} was saved, not the agreed one"
                if nodes != {node.node for node in agreed.nodes}:
                    return f"I6: saved with only node(s) {sorted(nodes)} quiesced"
            case _:
                pass
    return ""


def no_save_once_fenced(history: History) -> str:
    """I7: an attempt that knows it is fenced starts and publishes nothing."""
    fenced = False
    for event in events_of(history):
        if isinstance(event, e.AttemptFenced):
            fenced = True
        elif fenced and isinstance(event, e.SaveStarted | e.ManifestPublished):
            return "I7: a fenced attempt went on saving"
    return ""


def cordon_before_stop(history: History) -> str:
    """I11: the cordon's outcome is recorded before the ranks are asked to stop."""
    for drain in drains_of(history):
        cordoned = False
        for event in drain:
            if isinstance(event, e.NodeCordoned):
                cordoned = True
            elif isinstance(event, e.StopStepAgreed) and not cordoned:
                return "I11: a stop step was agreed before the cordon"
    return ""


RULES: tuple[Rule, ...] = (
    deadline_never_increases,
    budgets_count_against_the_deadline,
    at_most_one_save,
    save_only_if_it_fits,
    every_budget_adds_up,
    published_only_when_verified,
    all_ranks_at_the_agreed_step,
    no_save_once_fenced,
    cordon_before_stop,
)


def broken_rules(history: History) -> list[str]:
    """What the rules find wrong in a history; empty: all hold."""
    return [wrong for rule in RULES if (wrong := rule(history))]


def missed_deadline(history: History) -> str:
    """I9, for a history that is over: the drain's end is recorded before its deadline.

    A deadline that had passed when the notice came cannot be kept: such a drain ends at once.
    """
    drain_id, latest = "", 0
    for record in history:
        for event in record.events:
            match event:
                case e.NoticeReceived(effective_deadline_unix_ms=deadline):
                    heard = max(deadline, record.at_unix_ms)
                    latest = min(latest, heard) if event.drain_id == drain_id else heard
                    drain_id = event.drain_id
                case e.DeadlineShortened(to_unix_ms=deadline):
                    latest = min(latest, max(deadline, record.at_unix_ms))
                case e.Exited() if drain_id and record.at_unix_ms > latest:
                    return f"I9: exited {record.at_unix_ms - latest} ms after the deadline"
                case _:
                    pass
    return ""
