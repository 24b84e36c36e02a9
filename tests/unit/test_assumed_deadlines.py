"""A deadline that nobody stated, beside one that a HARD notice states; and notices of no weight."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.rules import broken_rules
from drainfsm.core.state import Phase
from drainfsm.testing.scenario import Scenario


def assumed(
    s: Scenario, *, in_ms: int | None = 30_000, hard: bool = False, heard_by: int = 0
) -> i.ReceiveNotice:
    given = s.notice(native_id="assumed", in_ms=in_ms, hard=hard).notice
    return i.ReceiveNotice(notice=replace(given, assumed=True, heard_by=heard_by))


def stated(s: Scenario, *, in_ms: int = 120_000, hard: bool = True) -> i.ReceiveNotice:
    given = s.notice(native_id="stated", in_ms=in_ms, hard=hard).notice
    return i.ReceiveNotice(notice=replace(given, heard_by=0))


@pytest.mark.parametrize("in_ms", [None, 30_000])
@pytest.mark.parametrize("hard", [True, False])
def test_an_assumed_deadline_does_not_tighten_a_stated_one(in_ms: int | None, hard: bool) -> None:
    s = Scenario(node_count=2)
    s.when(stated(s))
    before = s.state.current.deadline_unix_ms
    (received,) = s.when(assumed(s, in_ms=in_ms, hard=hard))
    assert isinstance(received, e.NoticeReceived)
    assert received.deadline_unix_ms == before
    assert s.state.current.deadline_unix_ms == before
    assert broken_rules(s.history) == []


def test_a_bare_signal_which_states_none_does_not_either() -> None:
    s = Scenario(node_count=1)
    s.when(stated(s))
    s.when(s.notice(native_id="bare", source="signal", in_ms=None))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 120_000


@pytest.mark.parametrize("node_count", [1, 2])
def test_a_stated_deadline_does(node_count: int) -> None:
    s = Scenario(node_count=node_count)
    s.when(stated(s))
    s.when(s.notice(native_id="sooner", in_ms=40_000))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 40_000


def test_an_assumed_deadline_of_another_machine_does() -> None:
    s = Scenario(node_count=2)
    s.when(stated(s))
    s.when(assumed(s, heard_by=1))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 30_000


def test_a_job_of_one_node_has_one_machine_whatever_a_notice_calls_it() -> None:
    s = Scenario(node_count=1)
    s.when(stated(s))
    named = replace(assumed(s).notice, nodes=("another-name",), heard_by=UNSET)
    s.when(i.ReceiveNotice(notice=named))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 120_000


def test_a_notice_that_names_no_node_is_not_about_one_that_another_names() -> None:
    s = Scenario(node_count=2)
    s.when(i.ReceiveNotice(notice=replace(stated(s).notice, nodes=("a",))))
    s.when(assumed(s))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 30_000


def test_notices_that_share_a_node_are_about_one_machine() -> None:
    s = Scenario(node_count=2)
    s.when(i.ReceiveNotice(notice=replace(stated(s).notice, nodes=("a", "b"))))
    s.when(i.ReceiveNotice(notice=replace(assumed(s, heard_by=1).notice, nodes=("b", "c"))))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 120_000


def test_of_several_stated_deadlines_the_earliest_bounds_an_assumed_one() -> None:
    s = Scenario(node_count=1)
    s.when(i.ReceiveNotice(notice=replace(stated(s).notice, native_id="sooner")))
    s.when(stated(s, in_ms=240_000))
    (received,) = s.when(assumed(s))
    assert isinstance(received, e.NoticeReceived)
    assert received.deadline_unix_ms == s.now_unix_ms + 120_000


def test_a_soft_notice_states_nothing_that_could_be_relied_on() -> None:
    s = Scenario()
    s.when(stated(s, hard=False))
    s.when(assumed(s))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 30_000


def test_what_was_adopted_first_stays() -> None:
    """A drain's deadline never moves later."""
    s = Scenario()
    s.when(assumed(s))
    s.when(stated(s))
    assert s.state.current.deadline_unix_ms == s.now_unix_ms + 30_000


def test_advice_is_recorded_and_opens_no_drain() -> None:
    s = Scenario()
    advice = replace(s.notice().notice, advisory=True)
    assert s.when(i.ReceiveNotice(notice=advice)) == (e.NoticeNoted(notice=advice),)
    assert (s.state.phase, s.state.drain) == (Phase.IDLE, None)
    s.given(s.notice())
    before = s.state
    assert s.when(i.ReceiveNotice(notice=advice)) == (e.NoticeNoted(notice=advice),)
    assert s.state == before
    assert broken_rules(s.history) == []


def test_a_drain_leaves_for_what_is_hard_and_for_what_set_its_deadline() -> None:
    s = Scenario()
    s.when(s.notice(native_id="maintenance", in_ms=600_000, hard=False))
    s.when(s.notice(native_id="withdrawn", in_ms=500_000, hard=False))
    s.when(i.WithdrawNotice(source="spot", native_id="withdrawn", reason="called off"))
    assert left_for(s) == ["spot/maintenance"]
    s.when(s.notice(native_id="reboot", in_ms=40_000, hard=False))
    assert left_for(s) == ["spot/reboot"]
    s.when(s.notice(native_id="gone", in_ms=90_000))
    assert left_for(s) == ["spot/gone", "spot/reboot"]


def left_for(s: Scenario) -> list[str]:
    return list(s.state.current.left_for)
