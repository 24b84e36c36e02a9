"""Notices on their way to the coordinator, and the deadline that they set here at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from drainfsm.core.events import SourceRecovered, SourceUnknown
from drainfsm.core.exit_plan import exit_plan
from drainfsm.core.notice import SIGNAL_SOURCE, Notice, revision_of, stated_revision
from drainfsm.runtime.agent.clock_offset import Offset
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m

T = TypeVar("T")

OFF_MS_MIN = 500
"""A smaller difference may be the time that a message took."""

CLOCK = "clock"
"""The clock as a source: it is unable to tell while it is off by more than is allowed for."""

ANSWER_S = 10.0
"""For the coordinator to put a notice on record; ``drainfsm notify`` then reports no answer."""

OWN_DECISION_MS_MIN = 1_000
"""A node acts on a notice by itself no sooner than this: first the coordinator is asked."""


class Sender(Protocol):
    def send(self, message: n.FromNode) -> None: ...


class Timekeeper(Protocol):
    """Ends the job by a given time: the node."""

    def set_own_limit(self, kill_by_unix_ms: int | None) -> None: ...
    def heard_signal(self, name: str) -> None: ...


class Notices:
    """Queues what is heard before the coordinator is reached; hands on and waits for answers."""

    def __init__(
        self, config: RunConfig, clock: Clock, offset: Offset, *, warn: Callable[[str], None]
    ) -> None:
        self._config = config
        self._clock = clock
        self._offset = offset
        self._warn = warn
        self.heard_signal = "SIGTERM"
        """The last one heard; before any, what a platform would send."""

        self._sender: Sender | None = None
        self._timekeeper: Timekeeper | None = None
        self._queued: list[n.FromNode] = []
        self._asks = 0
        self._answers: dict[int, asyncio.Future[n.NoticeAnswer]] = {}
        self._withdrawals: set[int] = set()
        """Requests that take a notice back."""

        self._revisions: dict[str, int] = {}
        """The revision of every notice that was heard here, by identity."""

        self._taken_back: set[str] = set()
        """Identities whose newest revision was taken back."""

        self._limits: dict[int, int] = {}
        """When this node ends the job on its own, by unanswered request."""

        self._clock_is_off = False
        self._limit_changed = asyncio.Event()

    # --- heard here -----------------------------------------------------------------------------

    def hear(self, notice: Notice) -> None:
        """From a signal or a source."""
        if notice.source == SIGNAL_SOURCE:
            self.heard_signal = notice.native_id
            if self._timekeeper is not None:
                self._timekeeper.heard_signal(notice.native_id)
        self._give(notice)

    def take_back(self, source: str, native_id: str, reason: str) -> None:
        self._take_back(source, native_id, reason)

    def source_state(self, source: str, since_unix_ms: int | None, detail: str) -> None:
        node = self._config.node_rank
        if since_unix_ms is None:
            self._send(SourceRecovered(source=source, node=node))
            return
        self._send(
            SourceUnknown(source=source, node=node, since_unix_ms=since_unix_ms, detail=detail)
        )

    async def call(self, message: m.FromCaller) -> m.NotifyAnswer:
        """From ``drainfsm notify``."""
        if isinstance(message, m.GiveNotice):
            answer = self._give(self._by_own_clock(message))
        else:
            answer = self._take_back(message.source, message.native_id, message.reason)
        try:
            async with asyncio.timeout(ANSWER_S):
                answered = await asyncio.shield(answer)
        except TimeoutError:
            return m.NotifyAnswer(error=f"the coordinator gave no answer within {ANSWER_S:g} s")
        return m.NotifyAnswer(error=answered.error, detail=answered.detail)

    def _by_own_clock(self, given: m.GiveNotice) -> Notice:
        """The wall clock may have been set since this agent started."""
        notice, stated = given.notice, given.stated_unix_ms
        if stated is None:
            return notice
        off_ms = self._clock.now_unix_ms() - stated
        deadline = notice.deadline_unix_ms
        return replace(
            notice,
            received_unix_ms=notice.received_unix_ms + off_ms,
            deadline_unix_ms=None if deadline is None else deadline + off_ms,
        )

    def _give(self, notice: Notice) -> asyncio.Future[n.NoticeAnswer]:
        ask, answer = self._ask()
        self._set_limit(ask, notice)
        notice = replace(notice, revision=stated_revision(self._count(notice)))
        self._send(n.NodeNotice(ask=ask, notice=notice))
        return answer

    def _take_back(
        self, source: str, native_id: str, reason: str
    ) -> asyncio.Future[n.NoticeAnswer]:
        ask, answer = self._ask()
        self._withdrawals.add(ask)
        identity = f"{source}/{native_id}"
        self._taken_back.add(identity)
        revision = self._revisions.setdefault(identity, 1)
        self._send(
            n.NodeWithdrawal(
                ask=ask, source=source, native_id=native_id, revision=revision, reason=reason
            )
        )
        return answer

    def _count(self, notice: Notice) -> int:
        """A new one, if the notice was taken back since it was last given here."""
        identity = notice.identity
        known = self._revisions.get(identity, 1)
        if identity in self._taken_back:
            self._taken_back.discard(identity)
            known += 1
        revision = self._revisions[identity] = max(known, revision_of(notice.revision))
        return revision

    def _ask(self) -> tuple[int, asyncio.Future[n.NoticeAnswer]]:
        self._asks += 1
        answer: asyncio.Future[n.NoticeAnswer] = asyncio.get_running_loop().create_future()
        self._answers[self._asks] = answer
        return self._asks, answer

    def _send(self, message: n.FromNode) -> None:
        if self._sender is None:
            self._queued.append(message)
            return
        if isinstance(message, n.NodeNotice):
            message = replace(message, notice=self._by_coordinators_clock(message.notice))
        self._sender.send(message)

    def _by_coordinators_clock(self, notice: Notice) -> Notice:
        """A grace is counted from when the notice was heard. An instant stands as its source stated
        it, or nodes would state one in many ways; unless this clock is further off than is allowed
        for."""
        ahead_ms, deadline = self._offset.ahead_ms, notice.deadline_unix_ms
        if deadline is None:
            return replace(notice, received_unix_ms=notice.received_unix_ms - ahead_ms)
        if abs(ahead_ms) <= self._allowed_off_ms:
            return notice
        return replace(
            notice,
            received_unix_ms=notice.received_unix_ms - ahead_ms,
            deadline_unix_ms=deadline - ahead_ms,
        )

    @property
    def _allowed_off_ms(self) -> int:
        return max(self._config.allowances.clock_skew_ms, OFF_MS_MIN)

    def check_clocks(self) -> None:
        """A clock that is off by more than is allowed for is recorded, and so is its end."""
        allowed_ms = self._allowed_off_ms
        ahead_ms, set_ms = self._offset.ahead_ms, self._clock.set_ms
        problem = ""
        if abs(ahead_ms) > allowed_ms:
            how = "ahead of" if ahead_ms > 0 else "behind"
            problem = f"its clock is {abs(ahead_ms) / 1_000:.1f} s {how} node 0's"
        elif abs(set_ms) > allowed_ms:
            how = "forward" if set_ms > 0 else "back"
            problem = f"its wall clock was set {how} by {abs(set_ms) / 1_000:.1f} s"
        if bool(problem) == self._clock_is_off:
            return
        self._clock_is_off = bool(problem)
        since = self._clock.now_unix_ms() if problem else None
        detail = f"{problem}: deadlines are corrected for that" if problem else ""
        self.source_state(CLOCK, since, detail)

    # --- the coordinator ------------------------------------------------------------------------

    def connect(self, sender: Sender, timekeeper: Timekeeper) -> None:
        """The node is in: hand on what waits."""
        self._sender, self._timekeeper = sender, timekeeper
        queued, self._queued = self._queued, []
        for message in queued:
            self._send(message)
        timekeeper.set_own_limit(self._limit())

    def on_answer(self, message: n.NoticeAnswer) -> None:
        """It is on record, or rejected: from here on the coordinator's deadlines count."""
        if message.error:
            what = "withdrawal" if message.ask in self._withdrawals else "notice"
            self._warn(f"a {what} was rejected: {message.error}")
        self._withdrawals.discard(message.ask)
        self._limits.pop(message.ask, None)
        self._tell_limit()
        answer = self._answers.pop(message.ask, None)
        if answer is not None and not answer.done():
            answer.set_result(message)

    # --- the deadline of a notice that nobody has answered --------------------------------------

    def _set_limit(self, ask: int, notice: Notice) -> None:
        if notice.revocable or notice.advisory:
            return
        allowances = self._config.allowances
        deadline = notice.deadline_unix_ms
        if deadline is None:
            deadline = notice.received_unix_ms + round(self._config.grace_s * 1_000)
        skew_ms = max(allowances.clock_skew_ms, notice.clock_skew_ms)
        plan = exit_plan(
            usable_deadline_unix_ms=deadline - skew_ms, exit_margin_ms=allowances.exit_margin_ms
        )
        self._limits[ask] = max(
            plan.kill_by_unix_ms, self._clock.now_unix_ms() + OWN_DECISION_MS_MIN
        )
        self._tell_limit()

    def _limit(self) -> int | None:
        return min(self._limits.values(), default=None)

    def _tell_limit(self) -> None:
        self._limit_changed.set()
        if self._timekeeper is not None:
            self._timekeeper.set_own_limit(self._limit())

    @property
    def overdue(self) -> bool:
        """The time of an unanswered notice is up."""
        limit = self._limit()
        return limit is not None and self._clock.now_unix_ms() >= limit

    async def unless_overdue(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``, or None where a notice's time is up before."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._limit_changed.clear()
                limit = self._limit()
                timeout_s = None if limit is None else self._clock.seconds_until(limit)
                if timeout_s is not None and timeout_s <= 0:
                    return None
                changed = asyncio.ensure_future(self._limit_changed.wait())
                await asyncio.wait(
                    {task, changed}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
            return task.result()
        finally:
            task.cancel()
