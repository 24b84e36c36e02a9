"""What a policy decides, as events: each holds all inputs of the decision.

They are made outside of every attempt, so no attempt's log holds them: ``policy.decisions``.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from drainfsm.core.events import snake_case
from drainfsm.policy.rules import CascadeRules, PreemptionRules, RestartRules


class PolicyFact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """Base of all. ``at_unix_ms`` is an input like every other."""

    at_unix_ms: int
    reason: str


class Ended(enum.StrEnum):
    """How an attempt ended, as it matters for its restart."""

    PREEMPTED = "preempted"
    """It drained: its capacity went away, whatever the cause."""

    LOST = "lost"
    """It went away without leaving, or could not begin."""

    NO_PROGRESS = "no_progress"
    """Several in a row, this one included, have left on the same checkpoint (exit code 77)."""

    SUPERSEDED = "superseded"
    FAILED = "failed"
    FINISHED = "finished"


class PastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an attempt that has ended."""

    epoch: int
    """0: it never claimed the job."""

    ended: Ended
    lived_ms: int
    progressed: bool | None = None
    """It committed something newer than what it began with; None: not known."""

    cause: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What ended in a row, without a healthy attempt in between."""

    preemption_count: int = 0
    failure_count: int = 0


class RestartAction(enum.StrEnum):
    RESTART = "restart"
    HOLD = "hold"
    """Nothing is started until somebody has looked at it."""

    END = "end"


class RestartDecided(PolicyFact, frozen=True, kw_only=True):
    """Whether and when the job comes back."""

    job_id: str
    attempt: PastAttempt
    before: Row
    row: Row
    """With this attempt."""

    rules: RestartRules
    chance: Annotated[float, Meta(ge=0, le=1)]
    """From 0 to 1: what shortened the pause."""

    action: RestartAction
    pause_ms: int = 0
    """From the end of the attempt to the start of the next."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A job that holds capacity."""

    job_id: str
    tier: str
    started_unix_ms: int
    """Of this attempt."""

    capacity: int = 1
    """In the scheduler's unit: accelerators, nodes."""

    at_risk_ms: int = 0
    """Work that no commit covers yet."""

    evicted_unix_ms: tuple[int, ...] = ()
    """When it was evicted before, as far as the quota reaches back."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A job that wants capacity."""

    job_id: str
    tier: str
    capacity: int = 1
    exemption: str = ""
    """Not empty: why it may preempt jobs within their minimum run time."""


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was not chosen."""

    job_id: str
    reason: str


class PreemptionDecided(PolicyFact, frozen=True, kw_only=True):
    """Which jobs make room for one that waits; none: it goes on waiting."""

    waiting: Waiting
    free_capacity: int
    running: tuple[Running, ...]
    rules: PreemptionRules
    victims: tuple[str, ...]
    spared: tuple[Spared, ...]
    exempted: tuple[str, ...] = ()
    """Victims that had not had their minimum run time."""

    @property
    def starts(self) -> bool:
        """There is room, with the victims gone."""
        room = {job.job_id: job.capacity for job in self.running}
        freed = sum(room[job_id] for job_id in self.victims)
        return self.free_capacity + freed >= self.waiting.capacity


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    at_unix_ms: int
    by: str
    """The job that takes the place."""

    victim: str


class CascadeDetected(PolicyFact, frozen=True, kw_only=True):
    """Jobs evict one another in a chain, or in a circle."""

    chain: tuple[Eviction, ...]
    """Oldest first; the victim of each evicts in the next."""

    cycle: bool
    """A job of the chain is evicted by what its own eviction began."""

    rules: CascadeRules


Decision: TypeAlias = RestartDecided | PreemptionDecided | CascadeDetected
