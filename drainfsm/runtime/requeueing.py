"""Builds the requeue record from what the attempt knows."""

from __future__ import annotations

from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import State
from drainfsm.runtime.node_messages import NodeRestored


def requeue_record(
    state: State,
    *,
    cause: str,
    settings: CheckpointSettings,
    before: RequeueRecord | None,
    restored: NodeRestored | None,
    now_unix_ms: int,
) -> RequeueRecord:
    """``before``: what this attempt was to consume. ``restored``: what it did consume."""
    committed = state.committed
    last = state.samples[-1] if state.samples else None
    world_size, layout = _shape(state, settings, before, restored)
    known = before.capacity if before is not None else None
    return RequeueRecord(
        job_id=state.job_id,
        epoch=state.epoch,
        cause=cause,
        generation_id=committed.generation_id if committed else None,
        manifest_digest=committed.manifest_digest if committed else None,
        step=committed.step if committed else None,
        world_size=world_size,
        layout=layout,
        digests=settings.digests,
        capacity=Capacity(
            node_count=state.node_count,
            accelerator_count=known.accelerator_count if known else 0,
            topology=known.topology if known else "",
            store_bytes_per_s=last.save_bytes * 1_000 // max(1, last.durable_ms) if last else 0,
            restore_ms=restored.restore_ms if restored else known.restore_ms if known else 0,
        ),
        recorded_unix_ms=now_unix_ms,
    )


def _shape(
    state: State,
    settings: CheckpointSettings,
    before: RequeueRecord | None,
    restored: NodeRestored | None,
) -> tuple[int, dict[str, int]]:
    """World size and layout of the generation: this attempt's once it committed something, else
    those of the one that it consumed, which another number of ranks may have saved."""
    committed = state.committed
    left_on = committed.generation_id if committed is not None else None
    if restored is not None and restored.saved_world_size and left_on == restored.generation_id:
        return restored.saved_world_size, restored.saved_layout
    if before is not None and before.generation_id is not None and left_on == before.generation_id:
        return before.world_size, before.layout
    return state.world_size or (before.world_size if before else 0), settings.layout
