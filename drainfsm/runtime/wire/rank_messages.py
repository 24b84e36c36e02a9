"""What a rank and its agent say to each other, and what ``drainfsm notify`` says to an agent."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from drainfsm.core.events import (
    CheckpointRestored,
    HealthyStepReached,
    MemoryShortage,
    RestoreRefused,
    snake_case,
)
from drainfsm.core.manifest import Entry
from drainfsm.core.notice import Notice
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, SaveOrder

TRAINING = "train"
"""The phase of a rank that is in its step loop."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=snake_case):
    """Base of all messages."""


# --- rank to agent ------------------------------------------------------------------------------


class Attach(Message, frozen=True, kw_only=True):
    """First message of a rank. None: the launcher did not say, the agent fills in."""

    rank: int | None
    world_size: int | None
    local_world_size: int | None
    pid: int
    incarnation: str
    """The same for all ranks that one (re)start of the launcher made."""


class Position(Message, frozen=True, kw_only=True):
    """Where the rank stands: the answer to ``Hold`` and ``Ask``, given by its reader thread."""

    number: int = 0
    """The drain of the ``Hold`` or ``Ask``: one that was called off may be answered after the
    next."""

    step: int
    """Last completed step; -1: none yet."""

    step_ms: int
    """Longest of its recent steps; 0: none was measured."""

    phase: str
    phase_left_ms: int | None
    """How long a phase outside the step loop is expected to go on; None: not known."""


class StepTime(Message, frozen=True, kw_only=True):
    """The longest of the rank's recent steps has changed."""

    step_ms: int


class Quiesced(Message, frozen=True, kw_only=True):
    step: int


class SizeDeclared(Message, frozen=True, kw_only=True):
    """The size of this rank's part of one checkpoint."""

    save_bytes: int


class SaveBegan(Message, frozen=True, kw_only=True):
    """A periodic save."""

    generation_id: str
    step: int


class Staged(Message, frozen=True, kw_only=True):
    generation_id: str
    staged_bytes: int


class DurableFiles(Message, frozen=True, kw_only=True):
    """Every file that this rank wrote is durable."""

    generation_id: str
    entries: tuple[Entry, ...]
    durable_ms: int
    saver: str = ""
    """Who wrote them, where the job writes its checkpoints itself; empty: drainfsm."""


class SaveFailed(Message, frozen=True, kw_only=True):
    generation_id: str
    reason: str
    memory: MemoryShortage | None = None


class Detach(Message, frozen=True, kw_only=True):
    """The rank closes its session: it reports nothing more."""


FromRank: TypeAlias = (
    Attach
    | Position
    | StepTime
    | Quiesced
    | SizeDeclared
    | SaveBegan
    | Staged
    | DurableFiles
    | SaveFailed
    | CheckpointRestored
    | RestoreRefused
    | HealthyStepReached
    | Detach
)

# --- agent to rank ------------------------------------------------------------------------------


class Attached(Message, frozen=True, kw_only=True):
    rank: int
    node: int = 0
    world_size: int
    job_id: str
    epoch: int
    store_url: str
    settings: CheckpointSettings
    restore: RestoreTarget | None
    restart: int = 0
    """How often a launcher has started the ranks again inside this attempt."""


class Refused(Message, frozen=True, kw_only=True):
    reason: str


class Hold(Message, frozen=True, kw_only=True):
    """Stop at the next step boundary, and report your step at once."""

    number: int = 0


class Ask(Message, frozen=True, kw_only=True):
    """Report your step."""

    number: int = 0
    """The drain whose hold was not answered in time."""


class Release(Message, frozen=True, kw_only=True):
    """Run on to the end of this step and hold there."""

    stop_step: int


class Resume(Message, frozen=True, kw_only=True):
    """The drain was called off."""


class Save(Message, frozen=True, kw_only=True):
    order: SaveOrder


class Abort(Message, frozen=True, kw_only=True):
    generation_id: str


class Leave(Message, frozen=True, kw_only=True):
    """Leave the training loop after this step; None: at the next boundary."""

    at_step: int | None


ToRank: TypeAlias = Attached | Refused | Hold | Ask | Release | Resume | Save | Abort | Leave

# --- notify to agent and back -------------------------------------------------------------------


class GiveNotice(Message, frozen=True, kw_only=True):
    notice: Notice
    stated_unix_ms: int | None = None
    """What the caller's wall clock showed: a deadline counts as a duration from then, whatever the
    agent's clock shows. None: it is stated by the agent's."""


class TakeBack(Message, frozen=True, kw_only=True):
    """Withdraw a SOFT notice."""

    source: str
    native_id: str
    reason: str


class NotifyAnswer(Message, frozen=True, kw_only=True):
    error: str = ""
    """Empty: done."""

    detail: str = ""
    """Where the drain stands now, in one line."""


FromCaller: TypeAlias = GiveNotice | TakeBack
