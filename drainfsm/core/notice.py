"""A notice: one statement that capacity will go away."""

from __future__ import annotations

import enum

import msgspec

SIGNAL_SOURCE = "signal"
"""The source of a notice that came as a bare signal: it says neither when nor why."""


class NoticeClass(enum.StrEnum):
    """Whether the statement can be taken back."""

    HARD = "hard"
    """Irrevocable: deletionTimestamp, Spot interruption, preemption in its grace."""

    SOFT = "soft"
    """Revocable or movable: cordon, rebalance, maintenance window, Slurm EndTime."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One statement by one source. ``(source, native_id)`` is its identity, however often it comes.

    A SOFT notice that moves later is a withdrawal followed by a notice with a new ``native_id``:
    inside one drain a later deadline is recorded and never adopted.
    """

    source: str
    """Name of the notice source: ``signal``, ``notify``, ``aws``, ``slurm`` …"""

    native_id: str
    """What the source calls it; stable over repeats (an event id, a pod uid, a payload hash)."""

    cause: str
    """Why, as evidence says: ``spot_interruption``, ``time_limit`` …; ``unknown`` without any."""

    notice_class: NoticeClass
    deadline_unix_ms: int | None
    """UTC instant after which processes may be killed; None: the job's configured grace counts."""

    received_unix_ms: int
    """When the source heard it, by the clock of the node that heard it."""

    clock_skew_ms: int = 0
    """How far the source's clock may be off ours, where the source lets us estimate it."""

    nodes: tuple[str, ...] = ()
    """Nodes that go away; empty: the node that heard it, or the whole job."""

    detail: str = ""
    """Free text for the postmortem."""

    @property
    def identity(self) -> str:
        return f"{self.source}/{self.native_id}"
