"""What a reader knows after folding a prefix of one attempt's log."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from drainfsm.core.budget import Allowances, Load, Sample
from drainfsm.core.events import NodeSteps
from drainfsm.core.notice import Notice, NoticeClass
from drainfsm.core.requeue import RequeueRecord


class Phase(enum.StrEnum):
    """Where the attempt's current drain stands. The table in ``lifecycle`` says what moves it."""

    IDLE = "idle"
    """No drain is open: the job runs."""

    SCHEDULED = "scheduled"
    NOTICED = "noticed"
    QUIESCING = "quiescing"
    QUIESCED = "quiesced"
    SAVING = "saving"
    STAGED = "staged"
    DURABLE = "durable"
    PUBLISHED = "published"
    LEAVING = "leaving"
    EXITED = "exited"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Terminal for the drain. After ``cancelled`` a later notice opens a new one."""
        return self in OVER

    @property
    def active(self) -> bool:
        """A drain is open."""
        return self in ACTIVE

    @property
    def draining(self) -> bool:
        """A drain has begun. One that is scheduled has not: the job runs as ever."""
        return self in ACTIVE and self is not Phase.SCHEDULED


OVER = frozenset({Phase.EXITED, Phase.CANCELLED, Phase.LOST})
ACTIVE = frozenset(set(Phase) - OVER - {Phase.IDLE})
SAVE_UNDER_WAY = frozenset({Phase.SAVING, Phase.STAGED, Phase.DURABLE})


class HeldNotice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A notice accepted into the current drain, all its repeats merged."""

    notice: Notice
    earliest_unix_ms: int
    latest_unix_ms: int | None
    """Latest deadline that it stated: recorded, never adopted. None: it never stated one."""

    withdrawn: bool = False


def merge(held: HeldNotice | None, notice: Notice, *, deadline_unix_ms: int) -> HeldNotice:
    """Repeats of one notice, in whatever order they came, give one and the same entry."""
    stated = notice.deadline_unix_ms
    if held is None:
        return HeldNotice(notice=notice, earliest_unix_ms=deadline_unix_ms, latest_unix_ms=stated)
    latest = held.latest_unix_ms
    if stated is not None:
        latest = stated if latest is None else max(latest, stated)
    return HeldNotice(
        notice=min(held.notice, notice, key=_precedence),
        earliest_unix_ms=min(held.earliest_unix_ms, deadline_unix_ms),
        latest_unix_ms=latest,
    )


def _precedence(notice: Notice) -> tuple[Any, ...]:
    """HARD before SOFT, then the content: a choice that no order of arrival changes."""
    soft = notice.notice_class is NoticeClass.SOFT
    deadline = -1 if notice.deadline_unix_ms is None else notice.deadline_unix_ms
    said = (notice.cause, notice.detail, notice.nodes, notice.clock_skew_ms)
    return (soft, deadline, *said, notice.received_unix_ms)


class Committed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest committed generation that this attempt knows of."""

    generation_id: str
    manifest_digest: str
    step: int


class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One attempt: what it runs with, what it committed, and its current drain."""

    job_id: str = ""
    epoch: int = 0

    # The attempt
    started: bool = False
    attempt_id: str = ""
    node_count: int = 0
    allowances: Allowances = Allowances()
    grace_ms: int = 0
    store: str = ""
    world_size: int = 0
    save_bytes: int = 0
    restart: int = 0
    """How often ranks have been started again inside this attempt."""

    committed: Committed | None = None
    samples: tuple[Sample, ...] = ()
    fenced_by: int | None = None
    healthy_step: int | None = None
    exit_code: int | None = None
    """Not None: the attempt's processes have ended."""

    drain_count: int = 0

    # Its current drain (as it ended, once ``phase.over``)
    phase: Phase = Phase.IDLE
    drain_id: str = ""
    notices: dict[str, HeldNotice] = {}
    deadline_unix_ms: int | None = None
    """Effective deadline: the minimum over every notice ever accepted into the drain."""

    clock_skew_ms: int = 0
    act_at_unix_ms: int = 0
    cordon: str | None = None
    hold_from_unix_ms: int | None = None
    """When the ranks were asked to hold."""

    quiesce_by_unix_ms: int = 0
    stop_step: int | None = None
    expected: tuple[NodeSteps, ...] = ()
    quiesced_nodes: frozenset[int] = frozenset()
    quiesce_ms: int | None = None
    generation_id: str | None = None
    save_from_unix_ms: int | None = None
    durable_at_unix_ms: int | None = None
    staged_bytes: int = 0
    durable_bytes: int = 0
    file_count: int = 0
    verified: bool = False
    requeue: RequeueRecord | None = None

    @property
    def load(self) -> Load:
        """The save that would be decided on now."""
        save_bytes = self.save_bytes
        if not save_bytes and self.samples:
            save_bytes = self.samples[-1].save_bytes
        return Load(world_size=self.world_size, save_bytes=save_bytes, store=self.store)

    @property
    def usable_deadline_unix_ms(self) -> int:
        """Deadline less the clock skew: the last instant that can be relied on."""
        if self.deadline_unix_ms is None:
            raise AssertionError("no drain is open")
        return self.deadline_unix_ms - self.clock_skew_ms

    @property
    def leave_by_unix_ms(self) -> int:
        """Latest instant to tell the ranks to leave."""
        return self.usable_deadline_unix_ms - self.allowances.exit_margin_ms

    @property
    def cause(self) -> str:
        """Of the notice with the earliest deadline; the identity breaks ties, not the order."""
        if not self.notices:
            return "unknown"
        return min(
            self.notices.values(), key=lambda n: (n.earliest_unix_ms, n.notice.identity)
        ).notice.cause

    @property
    def target_nodes(self) -> tuple[str, ...]:
        return tuple(sorted({node for n in self.notices.values() for node in n.notice.nodes}))

    @property
    def all_withdrawn(self) -> bool:
        return bool(self.notices) and all(n.withdrawn for n in self.notices.values())

    @property
    def has_hard_notice(self) -> bool:
        return any(n.notice.notice_class is NoticeClass.HARD for n in self.notices.values())

    @property
    def expected_nodes(self) -> set[int]:
        return {node.node for node in self.expected}


def generation_id(*, epoch: int, step: int, saver: str) -> str:
    """Unique per save: the epoch is claimed once, and inside it ``saver`` names the save.

    ``saver`` is ``d<n>`` for the n-th drain's save, and see ``periodic_id``.
    """
    return f"e{epoch:06d}-s{step:012d}-{saver}"


def periodic_id(*, epoch: int, step: int, restart: int) -> str:
    """Of the periodic save of a step. Ranks that were started again inside the attempt train some
    steps a second time, and may not write where their predecessors began to."""
    return generation_id(epoch=epoch, step=step, saver=f"p{restart or ''}")
