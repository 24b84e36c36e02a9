"""I1: the same notice, any number of times and in any order, gives the same state."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances
from drainfsm.core.notice import Notice
from drainfsm.core.state import State
from drainfsm.errors import NoticeRejectedError
from drainfsm.testing import strategies
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario


def _state_after(notices: list[Notice], allowances: Allowances) -> State:
    scenario = Scenario(allowances=allowances)
    for notice in notices:
        try:
            scenario.when(i.ReceiveNotice(notice=notice))
        except NoticeRejectedError:
            continue
    return scenario.state


@settings(max_examples=400, deadline=None)
@given(
    notices=st.lists(
        strategies.notices(now_unix_ms=NOON_UNIX_MS).filter(
            lambda notice: notice.deadline_unix_ms is not None
        ),
        min_size=1,
        max_size=6,
    ),
    allowances=strategies.allowances,
    data=st.data(),
)
def test_order_and_repeats_of_notices_change_nothing(
    notices: list[Notice], allowances: Allowances, data: st.DataObject
) -> None:
    repeated = notices + data.draw(st.lists(st.sampled_from(notices), max_size=4))
    shuffled = data.draw(st.permutations(repeated))
    assert _state_after(notices, allowances) == _state_after(shuffled, allowances)


@settings(max_examples=400, deadline=None)
@given(
    notices=st.lists(strategies.notices(now_unix_ms=NOON_UNIX_MS), min_size=1, max_size=6),
    allowances=strategies.allowances,
    data=st.data(),
)
def test_repeats_change_nothing_where_a_deadline_is_assumed_either(
    notices: list[Notice], allowances: Allowances, data: st.DataObject
) -> None:
    """It never tightens one that was stated before it: here the order counts."""
    repeats = data.draw(st.lists(st.sampled_from(notices), max_size=4))
    assert _state_after(notices, allowances) == _state_after(notices + repeats, allowances)
