"""Facts: what happened to a job's attempt and to its drains. A fact is never edited.

Instants end in ``_unix_ms`` (UTC milliseconds), durations in ``_ms``, sizes in ``_bytes``. The
``kind`` on the wire is the class name in snake_case, for ever. Every decision carries all the
numbers that it used (a ``Budget``), so that a postmortem can recompute it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TypeAlias, final, get_args

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.budget import Allowances, Budget, Sample
from drainfsm.core.notice import Notice
from drainfsm.core.requeue import RefusedGeneration, RequeueRecord
from drainfsm.core.words import Accumulation, CordonOutcome, DrillOutcome, Verification


@cache
def snake_case(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=snake_case, gc=False):
    """Base of all facts. No struct of the log can be part of a cycle, so all have ``gc=False``,
    which makes them smaller and quicker to build."""


class MissingRank(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rank that did not do what was asked in time, and what it was last seen doing."""

    rank: int
    """-1: a rank of that node that never attached, so its number is not known."""

    node: int
    last_step: int | None
    """Last optimizer step that it completed; None: none yet."""

    phase: str
    """``train``, ``eval``, ``compile`` …, ``never attached`` or ``lost``."""

    @property
    def name(self) -> str:
        return f"{'a rank' if self.rank < 0 else f'rank {self.rank}'} of node {self.node}"


class MemoryShortage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much a save would have staged at once, and how much memory its host had free."""

    host: str
    needed_bytes: int
    free_bytes: int


class NodeSteps(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where the ranks of one node stood when the stop step was agreed."""

    node: int
    ranks: tuple[int, ...]
    min_step: int
    max_step: int


# --- notices ------------------------------------------------------------------------------------


class NoticeReceived(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A notice was accepted: the first opens the drain; others are recorded into it."""

    drain_id: str
    notice: Notice
    deadline_unix_ms: int
    """This notice's deadline; by the configured grace if it states none."""

    effective_deadline_unix_ms: int
    """The drain's deadline: the minimum over every notice ever accepted into it."""

    act_at_unix_ms: int
    """When the drain starts to act: now, or the latest safe start of a SOFT notice."""

    budget: Budget
    step_ms: int = 0
    """Longest recent step of any rank, as reported by then; 0: unknown."""


class NoticeNoted(Fact, frozen=True, kw_only=True):
    """A notice that starts no drain: it is advice, or an earlier attempt on this machine has left
    for it."""

    notice: Notice


class NoticeWithdrawn(Fact, frozen=True, kw_only=True):
    """The source took the notice back, in every revision up to this one."""

    source: str
    native_id: str
    revision: int | UnsetType = UNSET
    """Absent: 1."""

    reason: str = ""


class DeadlineShortened(Fact, frozen=True, kw_only=True):
    """The effective deadline moved earlier. It never moves later."""

    source: str
    native_id: str
    from_unix_ms: int
    to_unix_ms: int
    act_at_unix_ms: int
    budget: Budget


class DrainDue(Fact, frozen=True, kw_only=True):
    """A scheduled drain reached its latest safe start, or a HARD notice came."""

    reason: str
    budget: Budget


class DrainCancelled(Fact, frozen=True, kw_only=True):
    """Every notice was withdrawn before a stop step was agreed: training goes on."""

    reason: str


# --- stopping -----------------------------------------------------------------------------------


class NodeCordoned(Fact, frozen=True, kw_only=True):
    """Outcome of asking the platform to schedule nothing new on the nodes that leave."""

    outcome: CordonOutcome
    duration_ms: int
    detail: str = ""
    quiesce_by_unix_ms: int
    """Latest instant for all ranks to hold at one step, if the save still fits then."""

    budget: Budget
    """The rule, evaluated now that the notice has been handled."""


class StopStepAgreed(Fact, frozen=True, kw_only=True):
    """All ranks stop after completing this step: the highest reported step + 1."""

    stop_step: int
    world_size: int
    nodes: tuple[NodeSteps, ...]
    step_ms: int
    """Longest recent step of any rank: the estimate by which the step is reachable in time."""

    accumulation: Accumulation
    quiesce_by_unix_ms: int
    budget: Budget


class RankQuiesced(Fact, frozen=True, kw_only=True):
    """The ranks of one node completed the agreed step and hold there (one event a node)."""

    node: int
    ranks: tuple[int, ...]
    step: int


class RanksQuiesced(Fact, frozen=True, kw_only=True):
    """Every rank holds at the stop step."""

    step: int
    rank_count: int
    quiesce_ms: int
    """From asking the ranks to the last one holding."""


class QuiesceTimedOut(Fact, frozen=True, kw_only=True):
    """Not every rank reached the stop step in time; names those that did not."""

    missing: tuple[MissingRank, ...]
    waited_ms: int


# --- saving -------------------------------------------------------------------------------------


class SaveDecided(Fact, frozen=True, kw_only=True):
    """The save fits: the budget says by how much."""

    generation_id: str
    step: int
    budget: Budget


class SaveSkipped(Fact, frozen=True, kw_only=True):
    """No save in this drain: leave on the last committed generation."""

    reason: str
    budget: Budget
    restore_generation_id: str | None
    """What the replacement will load; None: nothing was ever committed."""

    restore_step: int | None


class SaveStarted(Fact, frozen=True, kw_only=True):
    """The ranks are asked to write the generation."""

    generation_id: str
    step: int
    budget: Budget


class BytesStaged(Fact, frozen=True, kw_only=True):
    """Copied out of device memory on every rank."""

    generation_id: str
    staged_bytes: int
    rank_count: int
    staged_ms: int


class Durable(Fact, frozen=True, kw_only=True):
    """Every byte and directory entry is fsynced, on every rank."""

    generation_id: str
    durable_bytes: int
    file_count: int
    durable_ms: int


class EntriesVerified(Fact, frozen=True, kw_only=True):
    """Every expected entry is in the store, with the size its writer reported, and nothing else
    is."""

    generation_id: str
    expected_count: int
    verified_count: int
    verified_bytes: int
    verify_ms: int


class ManifestPublished(Fact, frozen=True, kw_only=True):
    """The manifest is durable and the commit record exists: the generation exists."""

    generation_id: str
    manifest_digest: str
    slot: int
    step: int
    world_size: int
    commit_ms: int
    """From durable to the commit record."""

    sample: Sample


class SaveAbandoned(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A save was under way and was given up; nothing was published."""

    generation_id: str
    reason: str
    budget: Budget
    restore_generation_id: str | None
    restore_step: int | None
    memory: MemoryShortage | None = None
    """If that was the reason."""


# --- leaving ------------------------------------------------------------------------------------


class RequeueRecorded(Fact, frozen=True, kw_only=True):
    """What the replacement restores is on record."""

    record: RequeueRecord
    error: str = ""
    """Not empty: the record could not be written to the store; the replacement derives it."""


class NodeExit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the processes of one node ended."""

    node: int
    exit_code: int
    killed_ranks: tuple[int, ...] = ()
    """Ranks that overran and were killed by their agent."""

    detail: str = ""


class Exited(Fact, frozen=True, kw_only=True):
    """No rank of the job is left."""

    exit_code: int
    nodes: tuple[NodeExit, ...]
    remaining_ms: int
    """Time to the deadline (skew not subtracted); negative: it was missed."""


# --- around drains ------------------------------------------------------------------------------


class AttemptStarted(Fact, frozen=True, kw_only=True):
    """This attempt claimed the job."""

    attempt_id: str
    node_count: int
    allowances: Allowances
    grace_ms: int
    """What a notice without a deadline gets."""

    store: str
    claim_slot: int
    restore: RequeueRecord | None
    """What this attempt restores; None: a fresh job."""

    samples: tuple[Sample, ...] = ()
    """Evidence from earlier attempts, newest last."""

    store_id: str | UnsetType = UNSET
    """Identity of the store; unset: it was claimed before stores had one."""


class WorldFormed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Every expected rank has attached. Recorded again when a launcher has restarted the ranks."""

    world_size: int
    save_bytes: int
    """Size of one checkpoint as far as the ranks have declared it; 0: not yet."""

    restart: int = 0
    """How often ranks have been started again inside this attempt."""


class CheckpointSized(Fact, frozen=True, kw_only=True):
    """The ranks declared the size of one checkpoint, and it has changed."""

    save_bytes: int


class AttemptFenced(Fact, frozen=True, kw_only=True):
    """A newer epoch has claimed the job; this attempt can no longer publish."""

    by_epoch: int


class AttemptLost(Fact, frozen=True, kw_only=True):
    """An attempt went away without leaving: this one (a node was lost), or an earlier one."""

    epoch: int
    reason: str
    last_seen_unix_ms: int | None = None


class AttemptFinished(Fact, frozen=True, kw_only=True):
    """The job's processes ended by themselves, outside a drain."""

    exit_code: int


class CheckpointCommitted(Fact, frozen=True, kw_only=True):
    """A periodic save was published: same commit path, same log."""

    generation_id: str
    manifest_digest: str
    slot: int
    step: int
    sample: Sample


class CheckpointFailed(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A periodic save failed; training goes on."""

    generation_id: str
    step: int
    reason: str
    memory: MemoryShortage | None = None
    """If that was the reason."""


class CheckpointRestored(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """Ranks restored a generation. Fields with a default came later; they are left out where empty,
    so that older records keep their bytes."""

    generation_id: str
    manifest_digest: str
    step: int
    restore_ms: int
    verification: Verification
    refused: tuple[RefusedGeneration, ...] = ()
    """Generations that should have been restored instead, and were damaged; the recorded one
    first."""

    saved_world_size: int = 0
    """Number of ranks that saved it; 0: not recorded."""

    saved_layout: dict[str, int] = {}
    not_restored: tuple[str, ...] = ()
    """Parts that started anew, because another number of ranks had saved the generation."""


class RestoreRefused(Fact, frozen=True, kw_only=True):
    """Ranks refused to restore the recorded generation, and end with this error."""

    generation_id: str
    """The one recorded for this attempt, even if an earlier one was tried in its place."""

    step: int
    error: str
    """Name of the exception, usually one of ``drainfsm.errors``."""

    reason: str
    rank: int
    """The rank that reported it first; ``reason`` may name another one, which found it."""

    node: int


class CheckpointDrilled(Fact, frozen=True, kw_only=True):
    """A committed generation was restored on purpose, by a process outside any attempt.

    Its record is kept in the checkpoint store beside the generation, not in an attempt's log.
    """

    generation_id: str
    manifest_digest: str
    step: int
    verification: Verification
    """If the drill failed: which check did."""

    drill_ms: int
    outcome: DrillOutcome
    detail: str = ""


class HealthyStepReached(Fact, frozen=True, kw_only=True):
    """The first optimizer step of this attempt completed on every rank."""

    step: int


class SourceUnknown(Fact, frozen=True, kw_only=True):
    """A notice source has been unable to tell for longer than its limit. Withdraws nothing."""

    source: str
    node: int
    since_unix_ms: int
    detail: str


class SourceRecovered(Fact, frozen=True, kw_only=True):
    """A notice source that was unable to tell can tell again."""

    source: str
    node: int


@final
class UnknownFact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of a kind that this version does not know; kept as it is, changes nothing."""

    kind: str
    body: msgspec.Raw


Event: TypeAlias = (
    NoticeReceived
    | NoticeNoted
    | NoticeWithdrawn
    | DeadlineShortened
    | DrainDue
    | DrainCancelled
    | NodeCordoned
    | StopStepAgreed
    | RankQuiesced
    | RanksQuiesced
    | QuiesceTimedOut
    | SaveDecided
    | SaveSkipped
    | SaveStarted
    | BytesStaged
    | Durable
    | EntriesVerified
    | ManifestPublished
    | SaveAbandoned
    | RequeueRecorded
    | Exited
    | AttemptStarted
    | WorldFormed
    | CheckpointSized
    | AttemptFenced
    | AttemptLost
    | AttemptFinished
    | CheckpointCommitted
    | CheckpointFailed
    | CheckpointRestored
    | RestoreRefused
    | CheckpointDrilled
    | HealthyStepReached
    | SourceUnknown
    | SourceRecovered
)

EVENT_TYPES: tuple[type[Fact], ...] = get_args(Event)
KINDS: dict[str, type[Fact]] = {snake_case(t.__name__): t for t in EVENT_TYPES}


def kind_of(event: Event | UnknownFact) -> str:
    return event.kind if isinstance(event, UnknownFact) else snake_case(type(event).__name__)
