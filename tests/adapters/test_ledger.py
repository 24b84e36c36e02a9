"""What is news, and under which identity: the lattice of HARD and SOFT statements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drainfsm.core.notice import Cause, NoticeClass
from drainfsm.testing.notice_sink import RecordingSink
from drainfsm_adapters.ledger import NONE, Ledger, Observed, Reading, unknown
from drainfsm_adapters.server_clock import ServerClock

NOW_UNIX_MS = 1_795_953_600_000
HARD, SOFT = NoticeClass.HARD, NoticeClass.SOFT


class Told:
    """A ledger, and readings given to it."""

    def __init__(self) -> None:
        self.sink = RecordingSink()
        self.now_unix_ms = NOW_UNIX_MS
        self._ledger = Ledger(
            source="aws",
            scope="i-1",
            sink=self.sink,
            clock=ServerClock(),
            now_unix_ms=lambda: self.now_unix_ms,
        )

    def read(self, *readings: Reading, confirm_count: int = 1) -> bool:
        unsure = False
        for reading in readings:
            unsure = self._ledger.settle("signal", reading, confirm_count=confirm_count)
        return unsure

    @property
    def deadlines_s(self) -> list[tuple[str, float | None]]:
        return [
            (n.native_id, n.deadline_unix_ms and (n.deadline_unix_ms - NOW_UNIX_MS) / 1_000)
            for n in self.sink.notices
        ]

    @property
    def withdrawn(self) -> list[str]:
        return [withdrawal.native_id for withdrawal in self.sink.withdrawals]


def event(in_s: int | None, *, notice_class: NoticeClass = SOFT, key: str = "e") -> Observed:
    return Observed(
        key=key,
        cause=Cause.HOST_MAINTENANCE,
        notice_class=notice_class,
        stated_unix_ms=None if in_s is None else NOW_UNIX_MS + in_s * 1_000,
    )


def stated(in_s: int | None, *, notice_class: NoticeClass = SOFT) -> Reading:
    return Reading(events=(event(in_s, notice_class=notice_class),))


def test_the_same_again_is_no_news() -> None:
    told = Told()
    told.read(*[stated(600)] * 5, *[stated(120, notice_class=HARD)] * 2)
    assert told.deadlines_s == [("i-1/e", 600), ("i-1/e", 120)]


def test_unknown_clears_nothing() -> None:
    told = Told()
    told.read(stated(600), *[unknown("503")] * 100, stated(600))
    assert told.deadlines_s == [("i-1/e", 600)]
    assert told.withdrawn == []


def test_a_partial_reading_adds_but_removes_nothing() -> None:
    told = Told()
    told.read(stated(600), unknown("one entry is garbage", event(900, key="other")))
    assert told.deadlines_s == [("i-1/e", 600), ("i-1/other", 900)]
    assert told.withdrawn == []


def test_what_is_stated_as_over_and_as_present_is_present() -> None:
    told = Told()
    told.read(stated(600), replace(stated(600), ended={"e": "e is completed"}))
    assert told.withdrawn == []
    told.read(Reading(ended={"e": "e is completed"}, complete=False))
    assert told.withdrawn == ["i-1/e"]


def test_a_soft_event_that_goes_is_withdrawn_and_comes_back_as_another() -> None:
    told = Told()
    told.read(stated(600), NONE, stated(600), NONE, stated(600))
    assert told.deadlines_s == [("i-1/e", 600), ("i-1/e~2", 600), ("i-1/e~3", 600)]
    assert told.withdrawn == ["i-1/e", "i-1/e~2"]


def test_where_absence_is_no_statement_one_reading_without_it_proves_nothing() -> None:
    told = Told()
    assert told.read(stated(600), NONE, confirm_count=2), "read again soon"
    assert not told.read(stated(600), confirm_count=2)
    assert told.withdrawn == []
    told.read(NONE, NONE, confirm_count=2)
    assert told.withdrawn == ["i-1/e"]


def test_an_event_that_is_said_to_be_over_is_withdrawn_at_once_with_the_reason() -> None:
    told = Told()
    told.read(stated(600), Reading(ended={"e": "e is canceled"}), confirm_count=2)
    assert [w.reason for w in told.sink.withdrawals] == ["e is canceled"]


def test_a_hard_event_stays_whatever_is_said_later() -> None:
    told = Told()
    told.read(
        stated(120, notice_class=HARD),
        *[NONE] * 3,
        Reading(ended={"e": "over"}),
        stated(125, notice_class=HARD),
        stated(60),
    )
    assert told.withdrawn == []
    assert told.deadlines_s == [("i-1/e", 120), ("i-1/e", 60)]
    assert {notice.notice_class for notice in told.sink.notices} == {HARD}


def test_a_hard_deadline_that_slides_at_every_poll_is_one_notice() -> None:
    told = Told()
    told.read(*[stated(120 + 2 * nth, notice_class=HARD) for nth in range(300)])
    assert told.deadlines_s == [("i-1/e", 120)]


def test_a_soft_deadline_that_slides_is_one_notice_too() -> None:
    told = Told()
    told.read(*[stated(120 + 2 * nth) for nth in range(300)])
    assert (told.deadlines_s, told.withdrawn) == ([("i-1/e", 120)], [])


def test_a_soft_event_that_moves_later_is_withdrawn_and_announced_as_another() -> None:
    told = Told()
    assert told.read(stated(600), stated(900)), "not before it is stated twice: read again soon"
    assert told.withdrawn == []
    told.read(stated(900))
    assert told.withdrawn == ["i-1/e"]
    assert told.deadlines_s == [("i-1/e", 600), ("i-1/e~2", 900)]


def test_an_event_that_moves_earlier_is_the_same_notice_with_the_earlier_deadline() -> None:
    told = Told()
    told.read(stated(600), stated(300))
    assert (told.deadlines_s, told.withdrawn) == ([("i-1/e", 600), ("i-1/e", 300)], [])


def test_a_hard_event_with_a_far_later_deadline_after_an_absence_is_another() -> None:
    """The machine was stopped, or hibernated, and lives again: it can be interrupted again."""
    told = Told()
    told.read(stated(120, notice_class=HARD), NONE, stated(3_600, notice_class=HARD))
    assert told.deadlines_s == [("i-1/e", 120), ("i-1/e~2", 3_600)]


def test_a_soft_event_that_begins_becomes_hard_and_is_due_now() -> None:
    told = Told()
    begun = replace(event(None, notice_class=HARD), at_once=True)
    told.read(stated(600), Reading(events=(begun,)), Reading(events=(begun,)), NONE)
    assert told.deadlines_s == [("i-1/e", 600), ("i-1/e", 0)]
    assert [n.notice_class for n in told.sink.notices] == [SOFT, HARD]
    assert told.withdrawn == []


def test_a_soft_window_that_is_open_already_leaves_the_grace_of_the_job() -> None:
    told = Told()
    told.read(stated(-30))
    assert told.deadlines_s == [("i-1/e", None)]


def test_a_hard_deadline_in_the_past_stays_what_it_is() -> None:
    told = Told()
    told.read(stated(-30, notice_class=HARD))
    assert told.deadlines_s == [("i-1/e", -30)]


readings = st.one_of(
    st.just(NONE),
    st.just(unknown("503")),
    st.builds(
        lambda seconds, hard, at_once: Reading(
            events=(replace(event(seconds, notice_class=HARD if hard else SOFT), at_once=at_once),)
        ),
        st.integers(1, 5_000),
        st.booleans(),
        st.booleans(),
    ),
)


@given(st.lists(readings, max_size=40), st.integers(1, 3))
def test_whatever_a_platform_says(feed: list[Reading], confirm_count: int) -> None:
    """No deadline of one identity is extended, nothing HARD withdrawn, nothing withdrawn reused."""
    told = Told()
    earliest: dict[str, int] = {}
    hard: set[str] = set()
    for reading in feed:
        told.now_unix_ms += 1_000
        before = len(told.sink.notices), len(told.sink.withdrawals)
        told.read(reading, confirm_count=confirm_count)
        gone = {withdrawal.native_id for withdrawal in told.sink.withdrawals[: before[1]]}
        for withdrawal in told.sink.withdrawals[before[1] :]:
            assert withdrawal.native_id not in hard
            gone.add(withdrawal.native_id)
        for notice in told.sink.notices[before[0] :]:
            assert notice.native_id not in gone
            due = notice.deadline_unix_ms
            if due is not None:
                assert due <= earliest.get(notice.native_id, due)
                earliest[notice.native_id] = due
            if notice.notice_class is HARD:
                hard.add(notice.native_id)
            assert notice.notice_class is HARD or notice.native_id not in hard
