"""The requeue record: what the replacement must consume, exactly."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.chain import LogHead
from drainfsm.core.manifest import FORMAT_VERSION
from drainfsm.core.notice import Cause


class Digests(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Identity of what the job ran with; empty where the job did not say."""

    container: str = ""
    dataset: str = ""
    config: str = ""
    """``command-sha256:<hex>``, of the command, where the job did not name its configuration."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a replacement needs, so that a scheduler can match one."""

    node_count: int
    accelerator_count: int = 0
    """Of the whole job, configured or counted; 0: not known."""

    topology: str = ""
    """As configured."""

    store_bytes_per_s: int = 0
    """Durable write bandwidth measured in this attempt; 0: not measured."""

    restore_ms: int = 0
    """Longest restore measured in this attempt; 0: not measured."""


class RefusedGeneration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A committed generation that could not be restored, because it is damaged."""

    generation_id: str
    reason: str


class RequeueRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Written by the attempt that leaves (or, for a lost one, by the attempt that takes over)."""

    format_version: int = FORMAT_VERSION
    job_id: str
    epoch: int
    """The attempt that leaves."""

    cause: Cause
    """The notice's cause; ``finished``, ``failed`` or ``lost`` where there was no drain."""

    generation_id: str | None
    """None: nothing was ever committed; the job starts afresh."""

    manifest_digest: str | None
    step: int | None
    """Last optimizer step in the checkpoint; training resumes at ``step + 1``."""

    world_size: int
    layout: dict[str, int] = {}
    digests: Digests = Digests()
    capacity: Capacity
    recorded_unix_ms: int
    store_id: str | UnsetType = UNSET
    """Identity of the store that holds the generation; unset: recorded before stores had one."""

    log: LogHead | UnsetType = UNSET
    """The attempt's log as it was when this was recorded; unset: it is not chained."""

    @property
    def resume_step(self) -> int:
        """First step that the replacement trains."""
        return 0 if self.step is None else self.step + 1
