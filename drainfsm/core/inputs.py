"""What the shell tells the core: notices, reports, and that time has passed.

Reports of many ranks are gathered by the shell and handed over once complete. Facts that are
recorded as they are, or not at all, are handed over as events. A repeated input adds nothing, an
impossible one raises ``InputRejectedError``.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRestored,
    HealthyStepReached,
    MemoryShortage,
    MissingRank,
    NodeExit,
    RequeueRecorded,
    RestoreRefused,
    SourceRecovered,
    SourceUnknown,
)
from drainfsm.core.notice import Notice
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.words import Accumulation, CordonOutcome


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all inputs."""


class StartAttempt(Input, frozen=True, kw_only=True):
    """The attempt has claimed its epoch in the store."""

    attempt_id: str
    node_count: int
    allowances: Allowances
    grace_ms: int
    store: str
    store_id: str = ""
    claim_slot: int
    restore: RequeueRecord | None
    samples: tuple[Sample, ...] = ()
    lost_epoch: int | None = None
    """The attempt before this one, if it left no requeue record."""

    lost_last_seen_unix_ms: int | None = None


class FormWorld(Input, frozen=True, kw_only=True):
    """Every rank has attached, or has declared (again) the size of its part of a checkpoint."""

    world_size: int
    save_bytes: int
    """0: not declared (yet)."""

    restart: int = 0


class ReceiveNotice(Input, frozen=True, kw_only=True):
    """A node heard a notice."""

    notice: Notice
    step_ms: int = 0
    """Longest recent step of any rank; 0: not known."""


class WithdrawNotice(Input, frozen=True, kw_only=True):
    """A source took a SOFT notice back."""

    source: str
    native_id: str
    revision: int = 1
    """The newest revision that is taken back, with all before it."""

    reason: str = ""


class ReportCordon(Input, frozen=True, kw_only=True):
    """The platform was asked to schedule nothing new on the nodes, or that took too long."""

    outcome: CordonOutcome
    duration_ms: int
    detail: str = ""
    drain_id: str = ""
    """The drain it was for; empty: the present one. That of an earlier drain adds nothing."""

    attached: bool = True
    """False: no process of the job has called ``attach``, so none can be asked to stop."""


class NodePosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ranks of one node stand while they are held at their next boundary."""

    node: int
    ranks: tuple[int, ...]
    min_step: int
    """Lowest last completed step of the node's ranks; -1: none completed yet."""

    max_step: int
    step_ms: int
    """Longest recent step of any of them."""

    busy_rank: int | None = None
    """A rank that is in a phase outside the step loop (eval, compile …), if any."""

    busy_phase: str = ""
    busy_for_ms: int | None = None
    """How long that phase is expected to go on; None: not known."""


class ReportPositions(Input, frozen=True, kw_only=True):
    """Every node answered the hold."""

    positions: tuple[NodePosition, ...]
    accumulation: Accumulation = Accumulation.FINISH
    drain_id: str = ""
    """The drain they answer; empty: the present one. Those of an earlier drain add nothing."""


class ReportQuiesced(Input, frozen=True, kw_only=True):
    """The ranks of one node hold at the agreed step."""

    node: int
    ranks: tuple[int, ...]
    step: int


class ReportStaged(Input, frozen=True, kw_only=True):
    """Every rank has copied its part out of device memory."""

    generation_id: str
    staged_bytes: int
    rank_count: int


class ReportDurable(Input, frozen=True, kw_only=True):
    """Every byte and directory entry is fsynced, on every rank."""

    generation_id: str
    durable_bytes: int
    file_count: int
    rank_count: int


class ReportVerified(Input, frozen=True, kw_only=True):
    """What the store holds was compared with what the ranks reported."""

    generation_id: str
    expected_count: int
    verified_count: int
    verified_bytes: int


class ReportPublished(Input, frozen=True, kw_only=True):
    """The manifest is durable and the commit record exists."""

    generation_id: str
    manifest_digest: str
    slot: int


class ReportSaveFailed(Input, frozen=True, kw_only=True):
    """A rank, the store or the verification failed, and this save with it."""

    generation_id: str
    reason: str
    memory: MemoryShortage | None = None


class ReportExited(Input, frozen=True, kw_only=True):
    """No rank is left on any node. Outside a drain: the job ended by itself."""

    exit_code: int
    nodes: tuple[NodeExit, ...]


class ReportRanksLost(Input, frozen=True, kw_only=True):
    """Ranks died, or a node went away, while the job was meant to go on."""

    missing: tuple[MissingRank, ...]
    node_lost: bool
    reason: str


class ReportFenced(Input, frozen=True, kw_only=True):
    """A newer epoch has claimed the job."""

    by_epoch: int


class Tick(Input, frozen=True, kw_only=True):
    """Time passed. ``missing``: ranks that have not yet done what they were asked last."""

    missing: tuple[MissingRank, ...] = ()


AnyInput: TypeAlias = (
    StartAttempt
    | FormWorld
    | ReceiveNotice
    | WithdrawNotice
    | ReportCordon
    | ReportPositions
    | ReportQuiesced
    | ReportStaged
    | ReportDurable
    | ReportVerified
    | ReportPublished
    | ReportSaveFailed
    | ReportExited
    | ReportRanksLost
    | ReportFenced
    | CheckpointCommitted
    | CheckpointFailed
    | CheckpointRestored
    | RestoreRefused
    | HealthyStepReached
    | RequeueRecorded
    | SourceUnknown
    | SourceRecovered
    | Tick
)
