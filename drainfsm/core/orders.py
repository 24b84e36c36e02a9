"""Settings of checkpoints and capacity, and what an agent orders its ranks to restore and save."""

from __future__ import annotations

import msgspec

from drainfsm.core.manifest import Commit
from drainfsm.core.requeue import Digests
from drainfsm.core.words import Checksum, OnRefused, Verification


class CheckpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job saves and restores, from configuration."""

    every_steps: int = 0
    """A periodic save after this many optimizer steps; 0: only drains save."""

    every_s: int = 0
    """A periodic save at the first boundary this many seconds after the last; 0: off."""

    checksum: Checksum = Checksum.XXH3_128
    """Of every file, computed while it is written."""

    verify: Verification = Verification.SIZES
    """What a restore checks: ``sizes`` (fast gate) or ``checksums`` (reads every byte)."""

    on_refused: OnRefused = OnRefused.FAIL
    """When the recorded generation is damaged."""

    reshard: bool = False
    """Restore what another number of ranks, or another layout, has saved."""

    asynchronous: bool = True
    """Periodic saves: training goes on while the bytes are written."""

    final: bool = True
    """``session.close()`` saves the last step of a loop that ended by itself."""

    rewind: bool = False
    """The job may resume before its checkpoint, and commit an older step than that."""

    layout: dict[str, int] = {}
    digests: Digests = Digests()


class CapacitySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a replacement must have, where it cannot be measured."""

    accelerators: int = 0
    """Of the whole job; 0: as many as node 0 has, times the nodes."""

    topology: str = ""
    """In the words of the scheduler or the market, ``nvl72`` or ``same-rack``, say."""


class RestoreTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The exact generation to restore, from the requeue record."""

    generation_id: str
    manifest_digest: str
    step: int
    world_size: int
    layout: dict[str, int] = {}


class SaveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Write your part of this generation, now."""

    generation_id: str
    step: int
    durable_by_unix_ms: int


def target_of(commit: Commit, *, layout: dict[str, int]) -> RestoreTarget:
    """The order to restore a commit. ``layout``: its manifest's."""
    return RestoreTarget(
        generation_id=commit.generation_id,
        manifest_digest=commit.manifest_digest,
        step=commit.step,
        world_size=commit.world_size,
        layout=layout,
    )
