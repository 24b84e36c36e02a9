"""Reports that cannot be: each is refused by name, and changes nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.errors import InputRejectedError
from drainfsm.testing.scenario import Scenario


def refused(s: Scenario, given: i.AnyInput, *, match: str) -> None:
    before = s.state
    with pytest.raises(InputRejectedError, match=match):
        s.when(given)
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


def test_positions_of_a_part_of_the_world() -> None:
    s = held()
    first, _ = s.positions().positions
    refused(s, i.ReportPositions(positions=(first,)), match="positions of 2 rank")
    refused(s, i.ReportPositions(positions=(first, first)), match="positions of 4 rank")


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
