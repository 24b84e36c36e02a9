"""What a replacement of a job must have, for schedulers: a document with a schema."""

from __future__ import annotations

import msgspec

from drainfsm.core.requeue import Digests

REQUIREMENT_VERSION = 1


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """For a capacity market: everything that a candidate is compared by. 0 and "": not known."""

    format_version: int = REQUIREMENT_VERSION
    job_id: str
    node_count: int
    accelerator_count: int
    """Of the whole job."""

    topology: str
    """In the words of the job's configuration."""

    world_size: int
    """Ranks that saved the checkpoint; another number needs a job that can reshard."""

    layout: dict[str, int]
    """Parallel layout of the checkpoint."""

    digests: Digests
    checkpoint_bytes: int
    memory_bytes: int
    """Host memory of each node, to stage its share of a checkpoint."""

    store: str
    """URL of the checkpoint store, which the candidate must reach."""

    store_bytes_per_s: int
    """Durable write bandwidth of the whole job, as measured in its attempts."""

    restore_ms: int
    """Longest measured: by an attempt, or by a drill that loaded every tensor."""

    restore_basis: str
    """``attempt``, ``drill`` or ``none``: where ``restore_ms`` is from."""

    grace_ms: int
    """The window between a notice and the end in which a save fits; 0: not known."""

    resume_step: int
    """First step that the replacement trains."""
