"""Reports that cannot be: each is refused by name, and changes nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances
from drainfsm.core.state import Phase
from drainfsm.errors import InputRejectedError
from drainfsm.testing.scenario import Scenario


def refused(s: Scenario, given: i.AnyInput, *, match: str) -> None:
    before = s.state
    with pytest.raises(InputRejectedError, match=match) as caught:
        s.when(given)
    assert (caught.value.kind, caught.value.phase) == (type(given).__name__, before.phase)
    assert s.state == before


def held() -> Scenario:
    s = Scenario()
    return s.given(s.notice(), s.cordoned())


def test_the_stop_step_is_one_past_the_furthest_rank_of_any_node() -> None:
    s = held()
    behind, ahead = s.positions(step=100).positions
    agreed = s.when(i.ReportPositions(positions=(behind, replace(ahead, max_step=103))))[0]
    assert isinstance(agreed, e.StopStepAgreed)
    assert agreed.stop_step == 104


def test_positions_before_the_cordon() -> None:
    s = Scenario()
    s.given(s.notice())
    refused(s, s.positions(), match="the cordon comes before")


def test_positions_that_nobody_asked_for() -> None:
    s = Scenario()
    refused(s, s.positions(), match="no rank was asked to hold")
    s.given(s.notice(in_ms=600_000, hard=False))
    assert s.state.phase is Phase.SCHEDULED
    refused(s, s.positions(), match="no rank was asked to hold")


def test_a_cordon_that_nobody_asked_for() -> None:
    s = Scenario()
    refused(s, s.cordoned(), match="no cordon was asked for")
    s.given(s.notice(in_ms=600_000, hard=False))
    refused(s, s.cordoned(), match="no cordon was asked for")


def test_ranks_that_hold_before_a_step_is_agreed() -> None:
    s = held()
    refused(s, s.quiesced(0), match="no stop step is agreed")


def test_a_hard_notice_is_not_taken_back() -> None:
    s = Scenario()
    s.given(s.notice())
    taken_back = i.WithdrawNotice(source="spot", native_id="n1")
    refused(s, taken_back, match="spot/n1 is HARD and cannot be withdrawn")


def test_reports_of_a_save_that_was_not_started() -> None:
    s = held()
    for given in (
        s.staged(),
        s.durable(),
        s.verified(),
        s.published(),
        i.ReportSaveFailed(generation_id="g", reason="full"),
    ):
        refused(s, given, match="no save was started")


def test_files_are_verified_once_they_are_durable_and_published_once_they_are_verified() -> None:
    s = Scenario().saving()
    for given in (s.staged(), s.durable()):
        refused(s, s.verified(), match="the bytes were not reported durable")
        refused(s, s.published(), match="the entries were not verified")
        s.given(given)
    refused(s, s.published(), match="the entries were not verified")


def test_bytes_of_a_part_of_the_world() -> None:
    s = Scenario().saving()
    for given in (s.staged(), s.durable()):
        for count in (3, 5):
            part = replace(given, rank_count=count)
            refused(s, part, match=rf"{count} rank\(s\) of 4 reported")
        s.given(given)


def test_another_attempt_in_the_place_of_one_that_has_started() -> None:
    s = Scenario()
    started = i.StartAttempt(
        attempt_id="attempt",
        node_count=2,
        allowances=Allowances(),
        grace_ms=1,
        store="",
        claim_slot=1,
        restore=None,
    )
    assert s.when(started) == (), "a repeat"
    other = replace(started, attempt_id="other")
    refused(s, other, match="attempt attempt has started already")


def test_a_world_of_nobody() -> None:
    s = Scenario()
    refused(s, i.FormWorld(world_size=0, save_bytes=1), match="a world of 0 ranks")
    assert s.when(i.FormWorld(world_size=1, save_bytes=1)) != ()


def test_repeats_of_what_was_reported_add_nothing_however_late() -> None:
    s = held()
    told: list[i.AnyInput] = [s.cordoned()]
    for given in (s.positions(), *s.all_quiesced()):
        s.given(given)
        told.append(given)
        assert [s.when(again) for again in told] == [()] * len(told), s.state.phase
    for given in (s.staged(), s.durable(), s.verified(), s.published()):
        s.given(given)
        told.append(given)
        assert [s.when(again) for again in told] == [()] * len(told), s.state.phase
    s.given(i.ReportExited(exit_code=0, nodes=()))
    assert [s.when(again) for again in told] == [()] * len(told), s.state.phase


def test_positions_of_a_part_of_the_world() -> None:
    s = held()
    first, _ = s.positions().positions
    refused(s, i.ReportPositions(positions=(first,)), match="positions of 2 rank")
    refused(s, i.ReportPositions(positions=(first, first)), match="positions of 4 rank")
    again = replace(first, ranks=(2, 3))
    refused(s, i.ReportPositions(positions=(first, again)), match="two positions of one node")


def test_ranks_that_hold_at_another_step() -> None:
    s = held()
    s.given(s.positions())
    refused(s, s.quiesced(0, step=100), match="step 100 is not the agreed step 101")
    refused(s, s.quiesced(0, step=102), match="step 102 is not the agreed step 101")


def test_ranks_that_are_not_the_nodes() -> None:
    s = held()
    s.given(s.positions())
    wrong = i.ReportQuiesced(node=0, ranks=s.ranks(1), step=101)
    refused(s, wrong, match="node 0 has ranks")
    for node in (-1, 7):
        stranger = i.ReportQuiesced(node=node, ranks=s.ranks(0), step=101)
        refused(s, stranger, match=f"node {node} has ranks None")


def test_bytes_that_are_durable_and_were_never_staged() -> None:
    s = Scenario().saving()
    refused(s, s.durable(), match="not reported staged")


def test_a_report_of_another_save() -> None:
    s = Scenario().saving()
    refused(s, replace(s.staged(), generation_id="other"), match="other is not the drain's save")
    s.given(s.staged())
    refused(s, replace(s.durable(), generation_id="other"), match="other is not the drain's save")


def test_a_drain_that_is_fenced_saves_nothing() -> None:
    s = held()
    s.given(s.positions(), s.quiesced(0))
    events = s.when(i.ReportFenced(by_epoch=2))
    assert [type(event) for event in events] == [e.AttemptFenced, e.SaveSkipped]
    assert s.when(s.quiesced(1)) == ()
