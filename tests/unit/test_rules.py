"""Each named invariant: the smallest histories that break it and no other, and their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import rules
from drainfsm.core.inputs import WithdrawNotice
from drainfsm.core.records import Record
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario

Log = list[tuple[int, Any]]
"""Events, each with the instant of its record."""

Edit = Callable[[Log], Log]
PUBLISHED, TWICE = "one drain that publishes", "a drain that is called off, and another"


def _published() -> Log:
    s = Scenario(node_count=2, ranks_per_node=1).saving()
    s.given(s.staged(), s.durable(), s.verified(), s.published())
    return _log(s)


def _twice() -> Log:
    s = Scenario(node_count=2, ranks_per_node=1)
    s.given(s.notice(in_ms=400_000, hard=False), WithdrawNotice(source="spot", native_id="n1"))
    s.given(s.notice(in_ms=500_000, native_id="n2"), s.notice(in_ms=450_000, native_id="n3"))
    return _log(s)


def _log(scenario: Scenario) -> Log:
    return [(record.at_unix_ms, one) for record in scenario.history for one in record.events]


LOGS = {PUBLISHED: _published(), TWICE: _twice()}


def _history(log: Log) -> list[Record]:
    return [
        Record(id=f"r{n}", job_id="job", epoch=1, follows=n, at_unix_ms=at, events=(event,))
        for n, (at, event) in enumerate(log)
    ]


def _broken(log: Log) -> list[str]:
    history = _history(log)
    return [rule.__name__ for rule in (*rules.RULES, rules.missed_deadline) if rule(history)]


# --- edits --------------------------------------------------------------------------------------


def change(kind: type, number: int = 0, **fields: Any) -> Edit:
    """The event of that kind, other fields in it; ``budget__x`` is ``x`` of its budget."""

    def edit(log: Log) -> Log:
        place = [at for at, (_, event) in enumerate(log) if isinstance(event, kind)][number]
        at, event = log[place]
        own = {name: value for name, value in fields.items() if "__" not in name}
        inner = {name[8:]: value for name, value in fields.items() if "__" in name}
        if inner:
            own["budget"] = replace(event.budget, **inner)
        return [*log[:place], (at, replace(event, **own)), *log[place + 1 :]]

    return edit


def drop(*kinds: type) -> Edit:
    return lambda log: [one for one in log if not isinstance(one[1], kinds)]


def again(kind: type, **fields: Any) -> Edit:
    """The event comes once more, at once, with other fields."""

    def edit(log: Log) -> Log:
        place = next(at for at, (_, event) in enumerate(log) if isinstance(event, kind))
        at, event = log[place]
        return [*log[: place + 1], (at, replace(event, **fields)), *log[place + 1 :]]

    return edit


def earlier(kind: type, before: type) -> Edit:
    """The event comes just before the first of another kind."""

    def edit(log: Log) -> Log:
        moved = next(one for one in log if isinstance(one[1], kind))
        rest = [one for one in log if one is not moved]
        place = next(at for at, one in enumerate(rest) if isinstance(one[1], before))
        return [*rest[:place], moved, *rest[place:]]

    return edit


def end(at_unix_ms: int) -> Edit:
    exited = e.Exited(exit_code=75, nodes=(), remaining_ms=0)
    return lambda log: [*log, (at_unix_ms, exited)]


def fenced_before(kind: type) -> Edit:
    def edit(log: Log) -> Log:
        place = next(at for at, one in enumerate(log) if isinstance(one[1], kind))
        fenced = (log[place][0], e.AttemptFenced(by_epoch=2))
        return [*log[:place], fenced, *log[place:]]

    return edit


# --- what breaks one rule, and nothing else -----------------------------------------------------

DEADLINE = NOON_UNIX_MS + 60_000
SHORT = NOON_UNIX_MS + 450_000
SKEW_MS, NEEDED_MS = 500, 9_100
"""Of the save in ``PUBLISHED``."""


def left(remaining_ms: int, *, fits: bool) -> dict[str, Any]:
    """Fields of a budget with so much left, that adds up."""
    return {
        "budget__now_unix_ms": DEADLINE - SKEW_MS - remaining_ms,
        "budget__remaining_ms": remaining_ms,
        "budget__fits": fits,
    }


BREAKS: list[tuple[str, str, str, Edit]] = [
    (
        "deadline_never_increases",
        "a later notice moves it back",
        TWICE,
        change(e.NoticeReceived, 2, effective_deadline_unix_ms=SHORT + 50_001),
    ),
    (
        "deadline_never_increases",
        "it is shortened to something later",
        TWICE,
        change(e.DeadlineShortened, to_unix_ms=SHORT + 1),
    ),
    (
        "budgets_count_against_the_deadline",
        "one millisecond more than the notice gives",
        PUBLISHED,
        change(e.SaveStarted, budget__deadline_unix_ms=DEADLINE + 1, budget__remaining_ms=59_501),
    ),
    ("at_most_one_save", "a second save", PUBLISHED, again(e.SaveStarted, generation_id="other")),
    (
        "save_only_if_it_fits",
        "it takes all that is left",
        PUBLISHED,
        change(e.SaveStarted, **left(NEEDED_MS, fits=False)),
    ),
    (
        "every_budget_adds_up",
        "a millisecond that is not there",
        PUBLISHED,
        change(e.NoticeReceived, budget__remaining_ms=59_501),
    ),
    (
        "every_budget_adds_up",
        "a term that was left out",
        PUBLISHED,
        change(e.NodeCordoned, budget__exit_margin_ms=0),
    ),
    (
        "every_budget_adds_up",
        "it is said to fit, and does not",
        PUBLISHED,
        change(e.NodeCordoned, budget__fits=False),
    ),
    ("published_only_when_verified", "never verified", PUBLISHED, drop(e.EntriesVerified)),
    ("published_only_when_verified", "never durable", PUBLISHED, drop(e.Durable)),
    (
        "published_only_when_verified",
        "one file short",
        PUBLISHED,
        change(e.EntriesVerified, verified_count=8),
    ),
    (
        "published_only_when_verified",
        "one byte short",
        PUBLISHED,
        change(e.EntriesVerified, verified_bytes=999),
    ),
    (
        "published_only_when_verified",
        "fewer are expected than were written",
        PUBLISHED,
        change(e.EntriesVerified, verified_count=8, expected_count=8),
    ),
    (
        "published_only_when_verified",
        "another save's verification",
        PUBLISHED,
        change(e.EntriesVerified, generation_id="other"),
    ),
    (
        "published_only_when_verified",
        "verified after it was published",
        PUBLISHED,
        earlier(e.ManifestPublished, e.EntriesVerified),
    ),
    (
        "all_ranks_at_the_agreed_step",
        "the stop step is the highest report",
        PUBLISHED,
        change(e.StopStepAgreed, stop_step=100),
    ),
    (
        "all_ranks_at_the_agreed_step",
        "one node stopped a step early",
        PUBLISHED,
        change(e.RankQuiesced, 1, step=100),
    ),
    (
        "all_ranks_at_the_agreed_step",
        "one node never stopped",
        PUBLISHED,
        lambda log: [one for one in log if getattr(one[1], "node", None) != 1],
    ),
    (
        "all_ranks_at_the_agreed_step",
        "another step was saved",
        PUBLISHED,
        change(e.SaveStarted, step=102),
    ),
    (
        "all_ranks_at_the_agreed_step",
        "another step was published",
        PUBLISHED,
        change(e.ManifestPublished, step=100),
    ),
    ("no_save_once_fenced", "starts a save", PUBLISHED, fenced_before(e.SaveStarted)),
    ("no_save_once_fenced", "publishes", PUBLISHED, fenced_before(e.ManifestPublished)),
    ("cordon_before_stop", "no cordon", PUBLISHED, drop(e.NodeCordoned)),
    ("cordon_before_stop", "too late", PUBLISHED, earlier(e.StopStepAgreed, e.NodeCordoned)),
    ("missed_deadline", "a millisecond late", PUBLISHED, end(DEADLINE + 1)),
    ("missed_deadline", "late by the shortened one", TWICE, end(SHORT + 1)),
]

HOLDS: list[tuple[str, str, Edit]] = [
    ("as it is", PUBLISHED, lambda log: log),
    ("as it is", TWICE, lambda log: log),
    (
        "a millisecond more than it takes",
        PUBLISHED,
        change(e.SaveStarted, **left(NEEDED_MS + 1, fits=True)),
    ),
    ("at the deadline", PUBLISHED, end(DEADLINE)),
    ("at the shortened deadline", TWICE, end(SHORT)),
    (
        "fenced after it was published",
        PUBLISHED,
        lambda log: [*log, (0, e.AttemptFenced(by_epoch=2))],
    ),
    ("nothing published", PUBLISHED, drop(e.EntriesVerified, e.ManifestPublished)),
    ("the first notice again", PUBLISHED, again(e.NoticeReceived)),
    ("the next drain has a later deadline", TWICE, drop(e.DrainDue)),
    (
        "a drain without a cordon that asks nobody to stop",
        PUBLISHED,
        lambda log: [one for one in log if isinstance(one[1], e.NoticeReceived)],
    ),
]


@pytest.mark.parametrize(
    ("rule", "log", "edit"),
    [pytest.param(rule, log, edit, id=f"{rule}: {name}") for rule, name, log, edit in BREAKS],
)
def test_it_breaks_this_rule_and_no_other(rule: str, log: str, edit: Edit) -> None:
    assert _broken(edit(LOGS[log])) == [rule]


@pytest.mark.parametrize(
    ("log", "edit"), [pytest.param(log, edit, id=f"{name}, {log}") for name, log, edit in HOLDS]
)
def test_its_neighbours_break_none(log: str, edit: Edit) -> None:
    assert _broken(edit(LOGS[log])) == []


def test_every_rule_is_broken_by_something() -> None:
    named = {rule.__name__ for rule in (*rules.RULES, rules.missed_deadline)}
    assert {rule for rule, _, _, _ in BREAKS} == named
