"""The given/when/then kit that embedders test with: each verb says what is wrong."""

from __future__ import annotations

import pytest

from drainfsm.log.events import DrainDue, NodeCordoned, NoticeReceived, StopStepAgreed
from drainfsm.machine import WithdrawNotice
from drainfsm.testing import Scenario, broken_rules


def noticed() -> Scenario:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=60_000))
    return scenario


def test_what_follows_is_named_by_its_kinds_in_order() -> None:
    scenario = noticed().then(NoticeReceived)
    scenario.when(scenario.cordoned())
    scenario.then(NodeCordoned)
    scenario.when(scenario.positions())
    scenario.then(StopStepAgreed)
    assert broken_rules(scenario.history) == []


@pytest.mark.parametrize("kinds", [(), (DrainDue,), (NoticeReceived, DrainDue)])
def test_what_did_not_follow_is_told_with_what_did(
    kinds: tuple[type[NoticeReceived] | type[DrainDue], ...],
) -> None:
    with pytest.raises(AssertionError, match=r"got.*notice_received"):
        noticed().then(*kinds)


def test_nothing_happens_on_a_repeat() -> None:
    scenario = noticed()
    scenario.when(scenario.notice(in_ms=60_000))
    scenario.then_nothing()
    with pytest.raises(AssertionError, match=r"no event.*node_cordoned"):
        scenario.given(scenario.cordoned()).then_nothing()


def test_an_input_is_refused_for_the_reason_given() -> None:
    scenario = noticed()
    withdrawal = WithdrawNotice(source="spot", native_id="n1")
    scenario.then_refused(withdrawal, match="HARD").then_nothing()
    with pytest.raises(AssertionError, match="refused, but because"):
        scenario.then_refused(withdrawal, match="it is Tuesday")


def test_an_input_that_is_taken_was_not_refused() -> None:
    scenario = noticed()
    with pytest.raises(AssertionError, match=r"ReportCordon was taken.*node_cordoned"):
        scenario.then_refused(scenario.cordoned())
