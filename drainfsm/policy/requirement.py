"""What a replacement must have, by the job's attempts and drills; and whether a machine has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.manifest import Commit
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.requirement import Requirement
from drainfsm.core.words import DrillOutcome, Verification

RESTORED = (Verification.LOADED, Verification.RESTORED)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What one candidate node has. None: not known, so not compared."""

    accelerator_count: int | None = None
    topology: str | None = None
    memory_bytes: int | None = None
    store_reached: bool | None = None
    store_bytes_per_s: int | None = None
    """From this node alone."""

    window_ms: int | None = None


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the comparison."""

    what: str
    needed: str
    offered: str
    fits: bool | None
    """None: one of both is not known."""


def requirement_of(
    record: RequeueRecord,
    commit: Commit | None,
    drills: Sequence[CheckpointDrilled],
    *,
    store_url: str,
    grace_ms: int,
) -> Requirement:
    """``record``: what the last attempt left. ``commit``: the newest checkpoint."""
    capacity, total = record.capacity, commit.total_bytes if commit else 0
    restore_ms, basis = _restore(capacity, drills)
    return Requirement(
        job_id=record.job_id,
        node_count=capacity.node_count,
        accelerator_count=capacity.accelerator_count,
        topology=capacity.topology,
        world_size=record.world_size,
        layout=record.layout,
        digests=record.digests,
        checkpoint_bytes=total,
        memory_bytes=-(-total // max(1, capacity.node_count)),
        store=store_url,
        store_bytes_per_s=capacity.store_bytes_per_s,
        restore_ms=restore_ms,
        restore_basis=basis,
        grace_ms=grace_ms,
        resume_step=record.resume_step,
    )


def _restore(capacity: Capacity, drills: Sequence[CheckpointDrilled]) -> tuple[int, str]:
    drilled = [
        one.drill_ms
        for one in drills
        if one.outcome == DrillOutcome.VERIFIED and one.verification in RESTORED
    ]
    longest = max(drilled, default=0)
    if not longest and not capacity.restore_ms:
        return 0, "none"
    by_drill = longest > capacity.restore_ms
    return max(longest, capacity.restore_ms), "drill" if by_drill else "attempt"


def compare(needed: Requirement, offer: Offer) -> Iterator[Match]:
    """One node of a candidate; the job's needs are shared by its nodes."""
    nodes = max(1, needed.node_count)
    share = -(-needed.accelerator_count // nodes)
    yield _at_least("accelerators of a node", share, offer.accelerator_count)
    yield _same("topology", needed.topology, offer.topology)
    yield _at_least("memory of a node, bytes", needed.memory_bytes, offer.memory_bytes)
    reached = offer.store_reached
    yield Match(
        what="store",
        needed=needed.store,
        offered={None: "not tried", True: "reached", False: "not reached"}[reached],
        fits=reached,
    )
    rate = -(-needed.store_bytes_per_s // nodes)
    yield _at_least("store bandwidth of a node, bytes/s", rate, offer.store_bytes_per_s)
    yield _at_least("window, ms", needed.grace_ms, offer.window_ms)


def _at_least(what: str, needed: int, offered: int | None) -> Match:
    known = bool(needed) and offered is not None
    return Match(
        what=what,
        needed=str(needed or "not known"),
        offered="not known" if offered is None else str(offered),
        fits=offered >= needed if known and offered is not None else None,
    )


def _same(what: str, needed: str, offered: str | None) -> Match:
    return Match(
        what=what,
        needed=needed or "any",
        offered=offered or "not known",
        fits=None if not needed or not offered else needed == offered,
    )
