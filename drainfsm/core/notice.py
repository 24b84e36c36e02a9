"""A notice: one statement that capacity will go away."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.words import Word

SIGNAL_SOURCE = "signal"
"""Source of a notice that came as a bare signal, which says neither when nor why."""


def revision_of(stated: int | UnsetType) -> int:
    """A revision as a number; the first one is not written down."""
    return 1 if isinstance(stated, UnsetType) else stated


def stated_revision(revision: int) -> int | UnsetType:
    """The reverse."""
    return UNSET if revision == 1 else revision


Flag: TypeAlias = bool | UnsetType
"""Not written where it is not set, so that what older versions wrote is read and written alike."""


class NoticeClass(Word):
    """Whether the notice can be withdrawn. One of an unknown class cannot."""

    HARD = "hard"
    """Irrevocable: deletionTimestamp, Spot interruption, preemption in its grace."""

    SOFT = "soft"
    """Revocable or movable: cordon, rebalance, maintenance window, Slurm EndTime."""


class Cause(Word):
    """Why capacity goes away. Sources may state words of their own: ``Cause("flood")``."""

    UNKNOWN = "unknown"
    """There is no evidence."""

    SPOT_INTERRUPTION = "spot_interruption"
    REBALANCE_RECOMMENDATION = "rebalance_recommendation"
    SCALE_IN = "scale_in"
    CAPACITY_END = "capacity_end"
    HOST_MAINTENANCE = "host_maintenance"
    TIME_LIMIT = "time_limit"
    TIME_LIMIT_SHORTENED = "time_limit_shortened"
    PREEMPTION = "preemption"
    REQUEUE = "requeue"
    CANCELLED = "cancelled"
    NODE_FAILURE = "node_failure"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILING = "node_failing"
    NODE_REBOOT = "node_reboot"
    NODE_DRAIN = "node_drain"
    RESERVATION_END = "reservation_end"
    EVICTION = "eviction"
    POD_DELETED = "pod_deleted"
    NODE_TAINT = "node_taint"
    DEVICE_TAINT = "device_taint"
    NODE_SHUTDOWN = "node_shutdown"
    NODE_LOST = "node_lost"
    """The platform has given the node up, or its object is gone."""

    JOB_TIMEOUT = "job_timeout"
    """The job's own limit on an attempt."""

    FINISHED = "finished"
    """No drain: the job ended by itself, with exit code 0."""

    FAILED = "failed"
    """No drain: the job ended by itself, with another exit code."""

    LOST = "lost"
    """The attempt went away without leaving."""


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One statement by one source. ``(source, native_id)`` is its identity, however often it comes.

    A SOFT notice that moves later is a withdrawal followed by a notice with a new ``native_id``:
    inside one drain a later deadline is recorded and never adopted.
    """

    source: str
    """Name of the notice source: ``signal``, ``notify``, ``aws``, ``slurm`` …"""

    native_id: str
    """The source's name for it, the same for every repeat (an event id, a pod uid, a payload
    hash)."""

    cause: Cause
    """Why, by the evidence."""

    notice_class: NoticeClass
    deadline_unix_ms: int | None
    """UTC instant after which processes may be killed; None: the job's configured grace counts."""

    received_unix_ms: int
    """When the source heard it, by the clock of the node that heard it."""

    clock_skew_ms: int = 0
    """How far the source's clock may be off ours, where the source lets us estimate it."""

    revision: int | UnsetType = UNSET
    """Absent: 1. Counts up whenever the source gives the notice again after having taken it back.
    A withdrawal takes back every revision up to its own, so that a repeat of an old one, however
    late, brings nothing back, and a new one does. The agent counts for its sources."""

    nodes: tuple[str, ...] = ()
    """Nodes that go away; empty: the node that heard it, or the whole job."""

    detail: str = ""
    """Free text for the postmortem."""

    standing: Flag = UNSET
    """It was there already when its source was first read, so its age is unknown. False: it came
    while the source was watched. Unset: the source does not say."""

    assumed: Flag = UNSET
    """The deadline follows from configuration, not from anything that the platform states."""

    advisory: Flag = UNSET
    """It is recorded, and starts no drain."""

    evicted_by: str | UnsetType = UNSET
    """The job that takes the capacity, if the notice says so."""

    heard_by: int | UnsetType = UNSET
    """Rank of the node that heard it, set on its way to the coordinator."""

    @property
    def revocable(self) -> bool:
        return self.notice_class == NoticeClass.SOFT

    @property
    def identity(self) -> str:
        return f"{self.source}/{self.native_id}"
