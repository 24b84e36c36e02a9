"""What a reader knows after folding a prefix of one attempt's log."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

import msgspec
from msgspec import UnsetType

from drainfsm.core.budget import Allowances, Load, Sample
from drainfsm.core.events import NodeSteps
from drainfsm.core.notice import Cause, Notice, revision_of
from drainfsm.core.requeue import RequeueRecord

T = TypeVar("T")


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
        """A drain has begun. One that is scheduled has not: the job runs as before."""
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

    revision: int
    """The newest revision heard."""

    withdrawn_revision: int = 0
    """The newest revision taken back; 0: none."""

    @property
    def withdrawn(self) -> bool:
        """Taken back, and not given again since. A HARD notice never is."""
        return self.notice.revocable and self.revision <= self.withdrawn_revision


def merge(
    held: HeldNotice | None, notice: Notice, *, deadline_unix_ms: int, withdrawn_revision: int
) -> HeldNotice:
    """Repeats and withdrawals of one notice, in whatever order they came, give the same entry."""
    stated = notice.deadline_unix_ms
    if held is None:
        return HeldNotice(
            notice=notice,
            earliest_unix_ms=deadline_unix_ms,
            latest_unix_ms=stated,
            revision=revision_of(notice.revision),
            withdrawn_revision=withdrawn_revision,
        )
    latest = held.latest_unix_ms
    if stated is not None:
        latest = stated if latest is None else max(latest, stated)
    return HeldNotice(
        notice=min(held.notice, notice, key=_precedence),
        earliest_unix_ms=min(held.earliest_unix_ms, deadline_unix_ms),
        latest_unix_ms=latest,
        revision=max(held.revision, revision_of(notice.revision)),
        withdrawn_revision=withdrawn_revision,
    )


def _precedence(notice: Notice) -> tuple[Any, ...]:
    """HARD before SOFT, then the content, so that the order of arrival does not matter."""
    deadline = -1 if notice.deadline_unix_ms is None else notice.deadline_unix_ms
    said = (notice.cause, notice.detail, notice.nodes, notice.clock_skew_ms)
    heard_by = -1 if isinstance(notice.heard_by, UnsetType) else notice.heard_by
    flags = (bool(notice.standing), bool(notice.assumed), bool(notice.advisory))
    when = (notice.received_unix_ms, revision_of(notice.revision))
    return (notice.revocable, deadline, *said, *when, *flags, heard_by)


class Committed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest committed generation that this attempt knows of."""

    generation_id: str
    manifest_digest: str
    step: int
    slot: int = 0
    """Of the newest commit record that this attempt has made; 0: none."""


def left_on(record: RequeueRecord) -> Committed | None:
    """The generation that the record names; None: the job starts afresh."""
    generation, digest, step = record.generation_id, record.manifest_digest, record.step
    if generation is None or digest is None or step is None:
        return None
    return Committed(generation_id=generation, manifest_digest=digest, step=step)


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of the job: what it runs with, what it committed, how it ended."""

    job_id: str
    epoch: int
    attempt_id: str | None = None
    """None: it has not started."""

    node_count: int = 0
    allowances: Allowances = Allowances()
    grace_ms: int = 0
    store: str = ""
    world_size: int = 0
    """Number of ranks; 0: not all have attached yet."""

    save_bytes: int = 0
    """Size of one checkpoint as far as the ranks have declared it; 0: not yet."""

    restart: int = 0
    """How often ranks have been started again inside this attempt."""

    committed: Committed | None = None
    samples: tuple[Sample, ...] = ()
    fenced_by: int | None = None
    healthy_step: int | None = None
    requeue: RequeueRecord | None = None
    withdrawn: dict[str, int] = {}
    """The newest revision taken back in any drain, by identity of the SOFT notice."""

    exit_code: int | None = None
    """Not None: the attempt's processes have ended."""

    @property
    def started(self) -> bool:
        return self.attempt_id is not None

    @property
    def load(self) -> Load:
        """The save that would be decided on now."""
        save_bytes = self.save_bytes
        if not save_bytes and self.samples:
            save_bytes = self.samples[-1].save_bytes
        return Load(world_size=self.world_size, save_bytes=save_bytes, store=self.store)


class HoldPeriod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The cordon is done, and the ranks were asked to hold at a step boundary."""

    from_unix_ms: int
    quiesce_by_unix_ms: int
    """Latest instant for all ranks to hold at one step, for the save still to fit."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The step after which all ranks stop, and the nodes that have done so."""

    step: int
    nodes: tuple[NodeSteps, ...]
    """Those that are expected, in order of their numbers."""

    waiting: frozenset[int]
    """Nodes whose ranks do not hold yet."""

    quiesce_ms: int | None = None
    """From asking the ranks to the last one holding; None: not all of them hold."""

    @property
    def quiesced(self) -> frozenset[int]:
        """Nodes whose ranks hold at the step."""
        return frozenset({node.node for node in self.nodes}) - self.waiting


class WrittenFiles(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every rank reported durable."""

    at_unix_ms: int
    file_count: int
    total_bytes: int


class DrainSave(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The drain's one save. It is kept after it was given up: reports may come late."""

    generation_id: str
    step: int
    from_unix_ms: int
    written: WrittenFiles | None = None
    verified: bool = False


class Drain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One drain, from its first notice on. What has not happened yet is None: an unknown instant is
    never made up."""

    drain_id: str
    number: int
    """1 for the attempt's first."""

    notices: dict[str, HeldNotice]
    deadline_unix_ms: int
    """Effective deadline: the minimum over every notice ever accepted into the drain."""

    clock_skew_ms: int
    act_at_unix_ms: int
    """When it begins to act: at once, or at the latest safe start of a SOFT notice."""

    step_ms: int = 0
    """Longest recent step of any rank when it was noticed; 0: not known."""

    cordon: str | None = None
    """Its outcome."""

    hold: HoldPeriod | None = None
    stop: Stop | None = None
    save: DrainSave | None = None

    @property
    def usable_deadline_unix_ms(self) -> int:
        """Deadline less the clock skew: the last instant that can be relied on."""
        return self.deadline_unix_ms - self.clock_skew_ms

    @property
    def cause(self) -> Cause:
        """Of the notice with the earliest deadline; the identity breaks ties, not the order."""
        earliest = min(self.notices.values(), key=lambda n: (n.earliest_unix_ms, n.notice.identity))
        return earliest.notice.cause

    @property
    def target_nodes(self) -> tuple[str, ...]:
        return tuple(sorted({node for n in self.notices.values() for node in n.notice.nodes}))

    @property
    def left_for(self) -> tuple[str, ...]:
        """Identities of the notices whose time has come: HARD ones, and the earliest of those that
        stand. A SOFT notice further ahead was not the reason to leave."""
        standing = {name: held for name, held in self.notices.items() if not held.withdrawn}
        earliest = min((held.earliest_unix_ms for held in standing.values()), default=0)
        return tuple(
            sorted(
                name
                for name, held in standing.items()
                if not held.notice.revocable or held.earliest_unix_ms <= earliest
            )
        )

    @property
    def all_withdrawn(self) -> bool:
        return all(n.withdrawn for n in self.notices.values())

    @property
    def has_hard_notice(self) -> bool:
        return any(not n.notice.revocable for n in self.notices.values())


class State(msgspec.Struct, frozen=True, gc=False):
    """One attempt and its current drain (as it ended, once ``phase.over``)."""

    attempt: Attempt
    drain: Drain | None = None
    """None: no notice was accepted yet."""

    phase: Phase = Phase.IDLE
    """Of the drain; also the end of an attempt that was lost without one."""

    @property
    def current(self) -> Drain:
        """The drain, in a phase that has one.

        Raises:
            AssertionError: none was opened.
        """
        return known(self.drain)

    @property
    def stop(self) -> Stop | None:
        """Of the drain; None: no stop step is agreed."""
        return None if self.drain is None else self.drain.stop

    @property
    def save(self) -> DrainSave | None:
        """Of the drain; None: none was started."""
        return None if self.drain is None else self.drain.save

    @property
    def drain_count(self) -> int:
        return 0 if self.drain is None else self.drain.number


def first_state(*, job_id: str, epoch: int) -> State:
    """Before the first record."""
    return State(Attempt(job_id=job_id, epoch=epoch))


def known(value: T | None) -> T:
    """The value, which the lifecycle table guarantees.

    Raises:
        AssertionError: it is None.
    """
    if value is None:
        raise AssertionError("the lifecycle table does not lead here")
    return value


def generation_id(*, epoch: int, step: int, saver: str) -> str:
    """Unique per save: the epoch is claimed once, and inside it ``saver`` names the save.

    ``saver`` is ``d<n>`` for the n-th drain's save, and see ``periodic_id``.
    """
    return f"e{epoch:06d}-s{step:012d}-{saver}"


def periodic_id(*, epoch: int, step: int, restart: int) -> str:
    """The generation of a periodic save. Ranks that were restarted inside the attempt train some
    steps twice, and must not write where their predecessors began to."""
    return generation_id(epoch=epoch, step=step, saver=f"p{restart or ''}")
