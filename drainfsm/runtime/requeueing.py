"""Builds the requeue record from what the attempt knows."""

from __future__ import annotations

from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import State


def requeue_record(
    state: State,
    *,
    cause: str,
    settings: CheckpointSettings,
    before: RequeueRecord | None,
    restore_ms: int,
    now_unix_ms: int,
) -> RequeueRecord:
    """``before``: what this attempt itself consumed."""
    committed = state.committed
    last = state.samples[-1] if state.samples else None
    known = before.capacity if before is not None else None
    return RequeueRecord(
        job_id=state.job_id,
        epoch=state.epoch,
        cause=cause,
        generation_id=committed.generation_id if committed else None,
        manifest_digest=committed.manifest_digest if committed else None,
        step=committed.step if committed else None,
        world_size=_world_size(state, before),
        layout=settings.layout,
        digests=settings.digests,
        capacity=Capacity(
            node_count=state.node_count,
            accelerator_count=known.accelerator_count if known else 0,
            topology=known.topology if known else "",
            store_bytes_per_s=last.save_bytes * 1_000 // max(1, last.durable_ms) if last else 0,
            restore_ms=restore_ms or (known.restore_ms if known else 0),
        ),
        recorded_unix_ms=now_unix_ms,
    )


def _world_size(state: State, before: RequeueRecord | None) -> int:
    """Of the generation: this attempt's once it committed something, else the one it consumed."""
    if before is not None and before.generation_id is not None:
        committed = state.committed
        if committed is None or committed.generation_id == before.generation_id:
            return before.world_size
    return state.world_size or (before.world_size if before else 0)
