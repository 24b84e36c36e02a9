"""Builds the requeue record from what the attempt knows."""

from __future__ import annotations

import hashlib

import msgspec

from drainfsm.core.events import CheckpointRestored
from drainfsm.core.notice import Cause
from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.requeue import Capacity, Digests, RequeueRecord
from drainfsm.core.state import Attempt
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.devices import accelerators


def requeue_record(
    attempt: Attempt,
    *,
    cause: Cause,
    config: RunConfig,
    before: RequeueRecord | None,
    restored: CheckpointRestored | None,
    now_unix_ms: int,
) -> RequeueRecord:
    """``before``: what this attempt was to restore. ``restored``: what it did restore."""
    committed = attempt.committed
    world_size, layout = _shape(attempt, config.checkpoint, before, restored)
    return RequeueRecord(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        cause=cause,
        generation_id=committed.generation_id if committed else None,
        manifest_digest=committed.manifest_digest if committed else None,
        step=committed.step if committed else None,
        world_size=world_size,
        layout=layout,
        digests=identity(config),
        capacity=_measured(attempt, config, before, restored),
        recorded_unix_ms=now_unix_ms,
    )


def identity(config: RunConfig) -> Digests:
    """As configured: nobody else knows container and dataset. The command is hashed where the job
    did not name its configuration."""
    digests = config.checkpoint.digests
    if digests.config:
        return digests
    command = hashlib.sha256(msgspec.json.encode(config.command)).hexdigest()
    return msgspec.structs.replace(digests, config=f"command-sha256:{command}")


def needed(config: RunConfig, before: RequeueRecord | None = None) -> Capacity:
    """What is known before the job has run: as configured, else counted here, else as it was."""
    known = before.capacity if before is not None else Capacity(node_count=config.nnodes)
    wanted = config.capacity
    counted = wanted.accelerators or accelerators() * config.nnodes
    return msgspec.structs.replace(
        known,
        node_count=config.nnodes,
        accelerator_count=counted or known.accelerator_count,
        topology=wanted.topology or known.topology,
    )


def _measured(
    attempt: Attempt,
    config: RunConfig,
    before: RequeueRecord | None,
    restored: CheckpointRestored | None,
) -> Capacity:
    capacity = needed(config, before)
    last = attempt.samples[-1] if attempt.samples else None
    return msgspec.structs.replace(
        capacity,
        store_bytes_per_s=(
            last.save_bytes * 1_000 // max(1, last.durable_ms)
            if last
            else capacity.store_bytes_per_s
        ),
        restore_ms=restored.restore_ms if restored else capacity.restore_ms,
    )


def _shape(
    attempt: Attempt,
    settings: CheckpointSettings,
    before: RequeueRecord | None,
    restored: CheckpointRestored | None,
) -> tuple[int, dict[str, int]]:
    """World size and layout of the generation: this attempt's once it committed something, else
    those of the one that it restored, which another number of ranks may have saved."""
    committed = attempt.committed
    left_on = committed.generation_id if committed is not None else None
    if restored is not None and restored.saved_world_size and left_on == restored.generation_id:
        return restored.saved_world_size, restored.saved_layout
    if before is not None and before.generation_id is not None and left_on == before.generation_id:
        return before.world_size, before.layout
    return attempt.world_size or (before.world_size if before else 0), settings.layout
