"""Which deadlines of a notice are taken, at the edges; and the instants that follow from one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drainfsm.core.budget import Allowances, Basis, Load, Stage, evaluate
from drainfsm.core.deadline import (
    AHEAD_MAX_MS,
    PAST_MAX_MS,
    budget_of,
    kill_by_unix_ms,
    last_quiesce_unix_ms,
    latest_safe_start_unix_ms,
    notice_deadline_unix_ms,
    quiesce_by_unix_ms,
    stage_of,
)
from drainfsm.core.events import NodeCordoned, NoticeReceived
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.state import Phase
from drainfsm.errors import NoticeRejectedError
from drainfsm.testing.scenario import Scenario

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT


def deadline_of(notice_class: NoticeClass, ahead_ms: int | None, *, heard_ms: int = 0) -> int:
    notice = Notice(
        source="test",
        native_id="1",
        cause=Cause.UNKNOWN,
        notice_class=notice_class,
        deadline_unix_ms=None if ahead_ms is None else NOW + ahead_ms,
        received_unix_ms=NOW + heard_ms,
    )
    return notice_deadline_unix_ms(notice, grace_ms=30_000, now_unix_ms=NOW) - NOW


@pytest.mark.parametrize(
    ("notice_class", "ahead_ms"),
    [(HARD, AHEAD_MAX_MS), (SOFT, AHEAD_MAX_MS), (HARD, -PAST_MAX_MS), (HARD, 0), (SOFT, 1)],
)
def test_the_farthest_deadlines_that_are_taken(notice_class: NoticeClass, ahead_ms: int) -> None:
    assert deadline_of(notice_class, ahead_ms) == ahead_ms


@pytest.mark.parametrize(
    ("notice_class", "ahead_ms", "says"),
    [
        (HARD, AHEAD_MAX_MS + 1, "its deadline is 366 days ahead"),
        (SOFT, 400 * DAY_MS, "its deadline is 400 days ahead"),
        (HARD, -PAST_MAX_MS - 1, r"its deadline is 86400\.0 s in the past"),
        (SOFT, 0, r"its deadline is 0\.0 s in the past"),
        (SOFT, -1_250, r"its deadline is 1\.2 s in the past"),
    ],
)
def test_a_deadline_that_is_taken_for_a_mistake(
    notice_class: NoticeClass, ahead_ms: int, says: str
) -> None:
    with pytest.raises(NoticeRejectedError, match=says):
        deadline_of(notice_class, ahead_ms)


def test_a_notice_without_a_deadline_has_the_grace_from_when_it_was_heard() -> None:
    assert deadline_of(HARD, None, heard_ms=-5_000) == 25_000
    assert deadline_of(SOFT, None, heard_ms=-29_999) == 1


def test_instants_before_a_deadline() -> None:
    """Ten seconds, of which 0.5 are skew, 2 quiesce, 1 write, 1.5 commit and 1 exit margin."""
    allowances = Allowances(
        handler_ms=0,
        quiesce_ms=2_000,
        commit_ms=1_500,
        exit_margin_ms=1_000,
        store_bytes_per_s=1_000_000,
        barrier_ms=0,
    )
    budgets = [
        evaluate(
            stage=stage,
            now_unix_ms=NOW,
            deadline_unix_ms=NOW + 10_000,
            clock_skew_ms=500,
            allowances=allowances,
            samples=(),
            load=Load(world_size=1, save_bytes=1_000_000, store="s"),
            step_ms=0,
        )
        for stage in (Stage.NOTICE, Stage.DURABLE)
    ]
    whole, durable = budgets
    assert latest_safe_start_unix_ms(whole, schedule_slack_ms=700) == NOW + 3_300
    assert latest_safe_start_unix_ms(whole, schedule_slack_ms=9_000) == NOW
    assert last_quiesce_unix_ms(whole) == NOW + 6_000
    assert last_quiesce_unix_ms(durable) == NOW + 8_500
    assert quiesce_by_unix_ms(whole, quiesce_ms=2_000) == NOW + 2_000
    assert quiesce_by_unix_ms(whole, quiesce_ms=7_000) == NOW + 6_000


STAGES = {
    Stage.NOTICE: {Phase.SCHEDULED, Phase.NOTICED},
    Stage.QUIESCED: {Phase.QUIESCING, Phase.QUIESCED},
    Stage.SAVING: {Phase.SAVING, Phase.STAGED},
    Stage.DURABLE: {Phase.DURABLE, Phase.PUBLISHED, Phase.LEAVING},
}


def test_terms_of_the_rule_are_to_come_until_their_phase_is_over() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=60_000))
    noticed = scenario.state
    for stage, phases in STAGES.items():
        assert {stage_of(replace(noticed, phase=phase)) for phase in phases} == {stage}
    scenario.when(scenario.cordoned())
    assert scenario.state.phase is Phase.NOTICED
    assert stage_of(scenario.state) is Stage.QUIESCED, "the ranks have been asked"


def test_the_terms_of_any_stage_can_be_asked_for() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=60_000))
    for stage, terms in (
        (Stage.NOTICE, ["quiesce", "durable", "commit"]),
        (Stage.SAVING, ["commit"]),
        (Stage.DURABLE, []),
    ):
        budget = budget_of(scenario.state, now_unix_ms=scenario.now_unix_ms, stage=stage)
        assert [name for name, _ in budget.terms] == terms


def test_long_steps_that_a_notice_told_of_count_until_the_ranks_hold() -> None:
    scenario = Scenario()
    scenario.when(replace(scenario.notice(in_ms=600_000, hard=False), step_ms=20_000))
    scenario.when(scenario.notice(in_ms=60_000, native_id="n2"))
    (cordoned,) = scenario.when(scenario.cordoned())
    assert isinstance(cordoned, NodeCordoned)
    assert cordoned.budget.quiesce is not None
    assert (cordoned.budget.quiesce.value_ms, cordoned.budget.quiesce.basis) == (
        40_000,
        Basis.STEP_TIMES,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_are_asked_early_have_the_whole_margin_and_then_are_killed(ranks: int) -> None:
    scenario = Scenario(node_count=1, ranks_per_node=ranks)
    scenario.when(scenario.notice(in_ms=60_000))
    state, allowances = scenario.state, scenario.state.attempt.allowances
    usable = NOW + 60_000 - allowances.clock_skew_ms
    assert kill_by_unix_ms(state, asked_unix_ms=NOW) == NOW + allowances.exit_margin_ms
    late = kill_by_unix_ms(state, asked_unix_ms=usable - 1)
    assert late == usable - allowances.exit_margin_ms // 2


def test_of_steps_that_nobody_has_told_nothing_is_assumed() -> None:
    scenario = Scenario(allowances=Allowances(quiesce_ms=0))
    (received,) = scenario.when(scenario.notice(in_ms=60_000))
    assert isinstance(received, NoticeReceived)
    assert received.budget.quiesce is not None
    assert (received.budget.quiesce.value_ms, received.step_ms) == (0, 0)
    budget = budget_of(scenario.state, now_unix_ms=scenario.now_unix_ms)
    assert budget.quiesce is not None
    assert (budget.quiesce.value_ms, budget.quiesce.basis) == (0, Basis.ALLOWANCE)
    longer = budget_of(scenario.state, now_unix_ms=scenario.now_unix_ms, step_ms=7)
    assert longer.quiesce is not None
    assert (longer.quiesce.value_ms, longer.quiesce.basis) == (14, Basis.STEP_TIMES)
