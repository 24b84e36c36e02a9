"""What the agents and the coordinator say to each other: one message a node, not one a rank."""

from __future__ import annotations

from typing import TypeAlias

from drainfsm.core.events import (
    CheckpointRestored,
    HealthyStepReached,
    MemoryShortage,
    MissingRank,
    NodeExit,
    RestoreRefused,
    SourceRecovered,
    SourceUnknown,
)
from drainfsm.core.inputs import NodePosition
from drainfsm.core.manifest import Entry
from drainfsm.core.notice import Notice
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, SaveOrder
from drainfsm.core.words import CordonOutcome
from drainfsm.runtime.wire.rank_messages import Message

PROTOCOL_VERSION = 5
"""Agents and coordinator of one job run the same version; it is checked when a node joins."""


# --- joining ------------------------------------------------------------------------------------


class Challenge(Message, frozen=True, kw_only=True):
    """The coordinator's first word."""

    protocol_version: int
    nonce: bytes


class Proof(Message, frozen=True, kw_only=True):
    """The agent knows the job token, and asks the coordinator to show the same."""

    job_id: str
    node_rank: int
    node_count: int
    nonce: bytes
    mac: bytes
    problem: str = ""
    """Why this node cannot run its part: then nothing is begun."""

    exit_code: int = 0
    """With which it ends therefore."""


class Gathering(Message, frozen=True, kw_only=True):
    """The node has its place. The job is claimed once every node has one."""


class Refusal(Message, frozen=True, kw_only=True):
    error: str
    """Name of the exception in ``drainfsm.errors``."""

    reason: str
    exit_code: int = 1
    """The exit code of every node, where the attempt is not started (``StartRefusedError``)."""


class Welcome(Message, frozen=True, kw_only=True):
    """The node is admitted; what its ranks run with."""

    mac: bytes
    now_unix_ms: int
    """By the coordinator's clock, as it states every deadline."""

    job_id: str
    epoch: int
    attempt_id: str
    store_url: str
    settings: CheckpointSettings


Joining: TypeAlias = Challenge | Gathering | Refusal | Welcome
"""What an agent may get before it is admitted."""


# --- node to coordinator ------------------------------------------------------------------------


class Heartbeat(Message, frozen=True, kw_only=True):
    now_unix_ms: int | None = None
    """The coordinator's clock, again."""


class NodeStarting(Message, frozen=True, kw_only=True):
    """Ranks of the node are about to attach (again): what do they start from?"""


class NodeFormed(Message, frozen=True, kw_only=True):
    """Every rank of the node attached (again), or its part of the checkpoint's size changed."""

    ranks: tuple[int, ...]
    world_size: int
    save_bytes: int
    restart: int
    """As the coordinator told these ranks when they began (``StartRanks``). A launcher's count
    would not do: torchrun counts on each node separately, and not every restart."""


class NodeHeld(Message, frozen=True, kw_only=True):
    """Every rank of the node has reported its step since it was asked to hold: none runs past the
    next."""

    position: NodePosition
    drain_id: str = ""
    """The drain whose hold this answers."""


class NodeStepTime(Message, frozen=True, kw_only=True):
    """The longest recent step of any rank of the node has changed."""

    step_ms: int


class NodeQuiesced(Message, frozen=True, kw_only=True):
    ranks: tuple[int, ...]
    step: int


class NodeLate(Message, frozen=True, kw_only=True):
    """The wait is nearly over: which ranks have not done what was asked, and what they are
    doing."""

    missing: tuple[MissingRank, ...]


class NodeSaveBegan(Message, frozen=True, kw_only=True):
    generation_id: str
    step: int


class NodeStaged(Message, frozen=True, kw_only=True):
    generation_id: str
    staged_bytes: int
    rank_count: int


class NodeDurable(Message, frozen=True, kw_only=True):
    generation_id: str
    entries: tuple[Entry, ...]
    file_counts: dict[int, int]
    """By rank: every rank of the node is in it, even one that wrote no file."""

    durable_ms: int
    """Of the slowest rank."""

    savers: tuple[str, ...] = ("",)
    """The different savers that the ranks named."""


class NodeSaveFailed(Message, frozen=True, kw_only=True):
    generation_id: str
    reason: str
    memory: MemoryShortage | None = None


class NodeRanksLost(Message, frozen=True, kw_only=True):
    """Ranks died during a drain."""

    missing: tuple[MissingRank, ...]
    reason: str


class NodeExited(Message, frozen=True, kw_only=True):
    """No process of the job is left on the node."""

    exit: NodeExit
    failed_unix_ms: int | None = None
    """When the node's first rank failed; None: none did."""

    unclosed_ranks: tuple[int, ...] = ()
    """Ranks that ended without closing their session."""


class NodeCordonDone(Message, frozen=True, kw_only=True):
    outcome: CordonOutcome
    detail: str
    drain_id: str = ""


class NodeNotice(Message, frozen=True, kw_only=True):
    ask: int
    """Number that the answer carries."""

    notice: Notice


class NodeWithdrawal(Message, frozen=True, kw_only=True):
    ask: int
    source: str
    native_id: str
    revision: int = 1
    reason: str


FromNode: TypeAlias = (
    Heartbeat
    | NodeStarting
    | NodeFormed
    | NodeHeld
    | NodeStepTime
    | NodeQuiesced
    | NodeLate
    | NodeSaveBegan
    | NodeStaged
    | NodeDurable
    | NodeSaveFailed
    | CheckpointRestored
    | RestoreRefused
    | HealthyStepReached
    | NodeRanksLost
    | NodeExited
    | NodeCordonDone
    | NodeNotice
    | NodeWithdrawal
    | SourceUnknown
    | SourceRecovered
)


# --- coordinator to node ------------------------------------------------------------------------


class NoticeAnswer(Message, frozen=True, kw_only=True):
    ask: int
    error: str
    detail: str


class SetBackstop(Message, frozen=True, kw_only=True):
    """When the agent kills what is left and ends, whatever else happens. None: no drain is on."""

    kill_by_unix_ms: int | None
    exit_by_unix_ms: int | None
    scheduled: bool = False
    """The drain still waits: it may be called off until then."""


class StartRanks(Message, frozen=True, kw_only=True):
    """The answer to ``NodeStarting``; for the nodes of one world it is the same."""

    restore: RestoreTarget | None
    restart: int
    """How often ranks have been started again inside this attempt."""


class CordonNode(Message, frozen=True, kw_only=True):
    nodes: tuple[str, ...]
    timeout_ms: int
    drain_id: str = ""


class HoldNode(Message, frozen=True, kw_only=True):
    answer_by_unix_ms: int
    drain_id: str = ""


class ReleaseNode(Message, frozen=True, kw_only=True):
    stop_step: int
    quiesce_by_unix_ms: int


class ResumeNode(Message, frozen=True, kw_only=True):
    pass


class SaveNode(Message, frozen=True, kw_only=True):
    order: SaveOrder


class AbortNode(Message, frozen=True, kw_only=True):
    generation_id: str


class LeaveNode(Message, frozen=True, kw_only=True):
    at_step: int | None
    kill_by_unix_ms: int


class JobLeft(Message, frozen=True, kw_only=True):
    """The whole job has left and it is on record: tell the platform, and exit."""

    exit_code: int
    requeue: bool
    done_by_unix_ms: int
    held: str = ""
    """Why it must not come back by itself; see ``adapter.Departure``."""

    act_by_unix_ms: int = 0
    """Until then the adapters may try their last acts; at least until ``done_by_unix_ms``."""

    left_for: tuple[str, ...] = ()
    """Identities of the notices that it has left for; empty: it ended otherwise."""


ToNode: TypeAlias = (
    Heartbeat
    | NoticeAnswer
    | SetBackstop
    | StartRanks
    | CordonNode
    | HoldNode
    | ReleaseNode
    | ResumeNode
    | SaveNode
    | AbortNode
    | LeaveNode
    | JobLeft
)
