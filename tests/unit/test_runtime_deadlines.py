"""A node keeps the deadline on its own: from a notice that nobody has answered to the last exit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.core.budget import Allowances
from drainfsm.core.events import SourceUnknown
from drainfsm.core.notice import Cause, Notice, NoticeClass, revision_of
from drainfsm.runtime.agent.clock_offset import HEARD_MAX, Offset
from drainfsm.runtime.agent.limits import Limits
from drainfsm.runtime.agent.notices import OWN_DECISION_MS_MIN, Notices
from drainfsm.runtime.agent.signals import notice_of
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m

CONFIG = RunConfig(
    job="job",
    store="store",
    state_dir=Path("state"),
    command=("true",),
    grace_s=30,
    allowances=Allowances(exit_margin_ms=4_000, clock_skew_ms=500),
)


class Coordinator:
    """Notes what is sent, and the limit that the node sets itself."""

    def __init__(self) -> None:
        self.sent: list[n.FromNode] = []
        self.limits: list[int | None] = []

    def send(self, message: n.FromNode) -> None:
        self.sent.append(message)

    def heard_signal(self, name: str) -> None:
        pass

    def set_own_limit(self, kill_by_unix_ms: int | None) -> None:
        self.limits.append(kill_by_unix_ms)


def notice(*, deadline_unix_ms: int | None, soft: bool = False) -> Notice:
    return Notice(
        source="test",
        native_id="1",
        cause=Cause.UNKNOWN,
        notice_class=NoticeClass.SOFT if soft else NoticeClass.HARD,
        deadline_unix_ms=deadline_unix_ms,
        received_unix_ms=0,
    )


def in_loop(story: Callable[[Notices, Clock, list[str]], object]) -> list[str]:
    """Runs the story inside an event loop; returns what was warned of."""
    warned: list[str] = []

    async def run() -> None:
        clock = Clock()
        result = story(Notices(CONFIG, clock, Offset(clock), warn=warned.append), clock, warned)
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(run())
    return warned


def test_a_hard_notice_sets_the_nodes_own_limit_until_it_is_answered() -> None:
    def story(notices: Notices, clock: Clock, warned: list[str]) -> None:
        coordinator = Coordinator()
        notices.connect(coordinator, coordinator)
        deadline = clock.now_unix_ms() + 60_000
        notices.hear(notice(deadline_unix_ms=deadline))
        assert coordinator.limits[-1] == deadline - 500 - 2_000
        (asked,) = coordinator.sent
        assert isinstance(asked, n.NodeNotice)
        notices.on_answer(n.NoticeAnswer(ask=asked.ask, error="", detail=""))
        assert coordinator.limits[-1] is None

    assert in_loop(story) == []


def test_a_rejected_notice_sets_no_limit_any_more_and_is_told() -> None:
    def story(notices: Notices, clock: Clock, warned: list[str]) -> None:
        coordinator = Coordinator()
        notices.connect(coordinator, coordinator)
        notices.hear(notice(deadline_unix_ms=5))
        limit = coordinator.limits[-1]
        assert limit is not None
        assert limit > clock.now_unix_ms() + OWN_DECISION_MS_MIN // 2, "first it is asked about"
        notices.on_answer(n.NoticeAnswer(ask=1, error="years in the past", detail=""))
        assert coordinator.limits[-1] is None

    assert in_loop(story) == ["a notice was rejected: years in the past"]


def test_a_soft_notice_sets_no_limit() -> None:
    def story(notices: Notices, clock: Clock, warned: list[str]) -> None:
        coordinator = Coordinator()
        notices.connect(coordinator, coordinator)
        notices.hear(notice(deadline_unix_ms=clock.now_unix_ms() + 60_000, soft=True))
        assert coordinator.limits == [None]

    in_loop(story)


def test_what_is_heard_before_the_coordinator_is_there_is_handed_on_in_order() -> None:
    def story(notices: Notices, clock: Clock, warned: list[str]) -> None:
        notices.hear(notice_of("SIGTERM", now_unix_ms=clock.now_unix_ms()))
        notices.source_state("aws", 5, "no route")
        notices.take_back("aws", "1", "gone")
        coordinator = Coordinator()
        notices.connect(coordinator, coordinator)
        kinds = [type(message) for message in coordinator.sent]
        assert kinds == [n.NodeNotice, SourceUnknown, n.NodeWithdrawal]
        assert coordinator.limits[-1] is not None

    in_loop(story)


def test_a_notice_that_is_given_again_after_it_was_taken_back_is_another_revision() -> None:
    def story(notices: Notices, clock: Clock, warned: list[str]) -> None:
        coordinator = Coordinator()
        notices.connect(coordinator, coordinator)
        far = notice(deadline_unix_ms=clock.now_unix_ms() + 60_000, soft=True)
        for _ in range(2):
            notices.hear(far)
            notices.hear(far)
            notices.take_back(far.source, far.native_id, "gone")
            notices.take_back(far.source, far.native_id, "gone")
        told = [
            revision_of(message.notice.revision)
            if isinstance(message, n.NodeNotice)
            else -message.revision
            for message in coordinator.sent
            if isinstance(message, n.NodeNotice | n.NodeWithdrawal)
        ]
        assert told == [1, 1, -1, -1, 2, 2, -2, -2]

    in_loop(story)


class Watch:
    """A clock to be set."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


def test_a_node_knows_how_far_its_clock_is_off_as_well_as_the_fastest_message_tells() -> None:
    watch = Watch()
    offset = Offset(Clock(watch))
    assert offset.here(7) == 7, "nothing was heard yet"
    for ahead_ms, under_way_ms in ((900, 40), (900, 3), (900, 25_000)):
        offset.hear(watch.now_ms - ahead_ms - under_way_ms)
    assert offset.ahead_ms == 903, "too much, if anything: nothing is cut short"
    assert offset.here(5_000) == 5_903
    for _ in range(HEARD_MAX):
        offset.hear(watch.now_ms + 200)
    assert offset.ahead_ms == -200, "clocks drift: what was heard long ago counts no more"


def test_the_grace_of_a_notice_without_a_deadline_is_counted_by_the_coordinators_clock() -> None:
    async def run() -> list[Notice]:
        watch, coordinator = Watch(), Coordinator()
        clock = Clock(watch)
        offset = Offset(clock)
        notices = Notices(CONFIG, clock, offset, warn=lambda text: None)
        notices.hear(notice(deadline_unix_ms=None))
        offset.hear(watch.now_ms - 900)
        notices.connect(coordinator, coordinator)
        return [said.notice for said in coordinator.sent if isinstance(said, n.NodeNotice)]

    told = asyncio.run(run())
    assert [one.received_unix_ms for one in told] == [-900]
    assert [one.deadline_unix_ms for one in told] == [None]


@pytest.mark.parametrize(("ahead_ms", "told_ms"), [(400, 5), (-500, 5), (900, -895)])
def test_an_instant_is_corrected_only_where_clocks_differ_by_more_than_is_allowed_for(
    ahead_ms: int, told_ms: int
) -> None:
    async def run() -> list[int | None]:
        watch, coordinator = Watch(), Coordinator()
        clock = Clock(watch)
        offset = Offset(clock)
        notices = Notices(CONFIG, clock, offset, warn=lambda text: None)
        offset.hear(watch.now_ms - ahead_ms)
        notices.connect(coordinator, coordinator)
        notices.hear(notice(deadline_unix_ms=5))
        notices.check_clocks()
        notices.check_clocks()
        sources = [one.detail for one in coordinator.sent if isinstance(one, SourceUnknown)]
        assert len(sources) == (abs(ahead_ms) > 500)
        return [
            one.notice.deadline_unix_ms for one in coordinator.sent if isinstance(one, n.NodeNotice)
        ]

    assert asyncio.run(run()) == [told_ms]


def test_a_deadline_by_hand_is_a_duration_whatever_the_clocks_show() -> None:
    """The wall clock was nine minutes behind when the agent started, and has been corrected."""

    async def run() -> list[n.FromNode]:
        watch, coordinator = Watch(), Coordinator()
        clock = Clock(watch)
        notices = Notices(CONFIG, clock, Offset(clock), warn=lambda text: None)
        notices.connect(coordinator, coordinator)
        wall_ms = watch.now_ms + 540_000
        given = replace(notice(deadline_unix_ms=wall_ms + 60_000), received_unix_ms=wall_ms)
        call = notices.call(m.GiveNotice(notice=given, stated_unix_ms=wall_ms))
        asking = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        asking.cancel()
        return coordinator.sent

    (told,) = asyncio.run(run())
    assert isinstance(told, n.NodeNotice)
    assert told.notice.deadline_unix_ms == Watch().now_ms + 60_000
    assert told.notice.received_unix_ms == Watch().now_ms


def test_joining_is_given_up_when_the_time_of_a_notice_is_up() -> None:
    async def tell(notices: Notices) -> None:
        async def for_ever() -> str:
            await asyncio.Event().wait()
            return "in"

        joining = asyncio.ensure_future(notices.unless_overdue(for_ever()))
        await asyncio.sleep(0)
        notices.hear(notice(deadline_unix_ms=1))
        assert await joining is None

    in_loop(lambda notices, clock, warned: tell(notices))


def test_joining_that_succeeds_is_not_disturbed_by_a_notice() -> None:
    async def tell(notices: Notices) -> None:
        joined = asyncio.Event()

        async def join() -> str:
            await joined.wait()
            return "in"

        joining = asyncio.ensure_future(notices.unless_overdue(join()))
        await asyncio.sleep(0)
        notices.hear(notice(deadline_unix_ms=None))
        joined.set()
        assert await joining == "in"

    in_loop(lambda notices, clock, warned: tell(notices))


def test_a_caller_hears_what_the_coordinator_answered() -> None:
    async def tell(notices: Notices) -> None:
        coordinator = Coordinator()
        notices.connect(coordinator, coordinator)
        calls = [
            asyncio.ensure_future(notices.call(message))
            for message in (
                m.GiveNotice(notice=notice(deadline_unix_ms=None)),
                m.TakeBack(source="test", native_id="1", reason=""),
            )
        ]
        await asyncio.sleep(0)
        notices.on_answer(n.NoticeAnswer(ask=2, error="it is HARD", detail=""))
        notices.on_answer(n.NoticeAnswer(ask=1, error="", detail="noticed"))
        assert [await call for call in calls] == [
            m.NotifyAnswer(detail="noticed"),
            m.NotifyAnswer(error="it is HARD"),
        ]

    in_loop(lambda notices, clock, warned: tell(notices))


def test_the_earliest_limit_kills_and_the_backstop_ends_the_agent() -> None:
    async def run() -> list[str]:
        clock, happened, over = Clock(), list[str](), asyncio.Event()

        def leave() -> None:
            happened.append("leave")
            over.set()

        limits = Limits(clock, kill=lambda why: happened.append("kill"), leave=leave)
        now = clock.now_unix_ms()
        limits.set_backstop(now + 3_600_000, now + 3_600_000)
        limits.set_own(now + 1_800_000)
        assert happened == []
        limits.set_leave(now)
        limits.set_backstop(now + 3_600_000, now)
        await over.wait()
        limits.close()
        return happened

    assert asyncio.run(run()) == ["kill", "leave"]


def test_a_node_that_nobody_answers_ends_its_agent_as_well() -> None:
    async def run() -> list[str]:
        clock, happened, over = Clock(), list[str](), asyncio.Event()

        def leave() -> None:
            happened.append("leave")
            over.set()

        limits = Limits(clock, kill=lambda why: happened.append("kill"), leave=leave)
        now = clock.now_unix_ms()
        limits.set_backstop(now + 3_600_000, now + 3_600_000)
        limits.set_own(now, now + 1)
        await over.wait()
        limits.close()
        return happened

    assert asyncio.run(run()) == ["kill", "leave"]


def test_a_drain_that_is_called_off_takes_its_limits_with_it() -> None:
    async def run() -> list[str]:
        clock, happened = Clock(), list[str]()
        limits = Limits(clock, kill=happened.append, leave=lambda: happened.append("leave"))
        now = clock.now_unix_ms()
        limits.set_backstop(now + 30, now + 30)
        limits.set_backstop(None, None)
        await asyncio.sleep(0.1)
        return happened

    assert asyncio.run(run()) == []
