"""I1: the same notices, any number of times and in any order, give the same state; so do their
withdrawals, by revision."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances
from drainfsm.core.notice import Cause, Notice, NoticeClass, revision_of, stated_revision
from drainfsm.core.state import Phase, State
from drainfsm.errors import InputRejectedError, NoticeRejectedError
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


# --- withdrawals ------------------------------------------------------------------------------


Statement = i.ReceiveNotice | i.WithdrawNotice
FAR_MS = (600_000, 900_000, strategies.DAY_MS)
"""Nothing is begun before: what has begun is not called off, whatever comes later."""


def _notice(native_id: str, revision: int, *, ahead_ms: int, hard: bool = False) -> i.ReceiveNotice:
    notice = Notice(
        source="spot",
        native_id=native_id,
        cause=Cause.UNKNOWN,
        notice_class=NoticeClass.HARD if hard else NoticeClass.SOFT,
        deadline_unix_ms=NOON_UNIX_MS + ahead_ms,
        received_unix_ms=NOON_UNIX_MS,
        revision=stated_revision(revision),
    )
    return i.ReceiveNotice(notice=notice)


def _withdrawal(native_id: str, revision: int) -> i.WithdrawNotice:
    return i.WithdrawNotice(source="spot", native_id=native_id, revision=revision)


def _after(statements: list[Statement]) -> State:
    scenario = Scenario()
    for statement in statements:
        try:
            scenario.when(statement)
        except InputRejectedError:  # what is HARD is not taken back
            continue
    return scenario.state


def _standing(state: State) -> set[str]:
    """Notices that the open drain is there for."""
    if not state.phase.active:
        return set()
    return {name for name, held in state.current.notices.items() if not held.withdrawn}


def test_a_repeat_of_what_was_taken_back_brings_nothing_back() -> None:
    first, gone = _notice("a", 1, ahead_ms=600_000), _withdrawal("a", 1)
    orders: list[list[Statement]] = [
        [first, gone, first],
        [first, first, gone],
        [first, gone, first, gone],
    ]
    for statements in orders:
        state = _after(statements)
        assert (state.phase, state.drain_count) == (Phase.CANCELLED, 1)


def test_a_notice_that_is_given_anew_stands() -> None:
    first, second = _notice("a", 1, ahead_ms=600_000), _notice("a", 2, ahead_ms=600_000)
    gone = _withdrawal("a", 1)
    orders: list[list[Statement]] = [
        [first, gone, second],
        [first, second, gone],
        [second, gone, first],
    ]
    for statements in orders:
        assert _standing(_after(statements)) == {"spot/a"}


def test_what_was_taken_back_is_remembered_in_the_next_drain() -> None:
    first, gone = _notice("a", 1, ahead_ms=600_000), _withdrawal("a", 1)
    other = _notice("b", 1, ahead_ms=900_000)
    state = _after([first, gone, other, first])
    assert state.current.notices.keys() == {"spot/b"}
    assert _standing(_after([first, gone, other, _notice("a", 1, ahead_ms=1, hard=True)])) == {
        "spot/a",
        "spot/b",
    }


@st.composite
def _lives(draw: st.DrawFn) -> list[Statement]:
    """Of a few notices, each: given, repeated, taken back, given anew and so on."""
    said: list[Statement] = []
    for native_id in "ab":
        for revision in range(1, draw(st.integers(1, 3)) + 1):
            for ahead_ms in draw(st.lists(st.sampled_from(FAR_MS), min_size=1, max_size=2)):
                said.append(_notice(native_id, revision, ahead_ms=ahead_ms))
            if draw(st.booleans()):
                said.append(_withdrawal(native_id, revision))
    return said


def _possible(statements: list[Statement]) -> list[Statement]:
    """In the same order, but no withdrawal before the notice that it takes back."""
    heard: set[tuple[str, int]] = set()
    early: list[Statement] = []
    for statement in statements:
        match statement:
            case i.ReceiveNotice(notice=notice):
                heard.add((notice.native_id, revision_of(notice.revision)))
            case i.WithdrawNotice() if (statement.native_id, statement.revision) not in heard:
                early.append(statement)
    return [one for one in statements if one not in early] + early


@settings(max_examples=400, deadline=None)
@given(lives=_lives(), data=st.data())
def test_what_stands_does_not_depend_on_the_order(
    lives: list[Statement], data: st.DataObject
) -> None:
    repeated = lives + data.draw(st.lists(st.sampled_from(lives), max_size=4))
    shuffled = _possible(data.draw(st.permutations(repeated)))
    assert _standing(_after(shuffled)) == _standing(_after(lives))
