"""How many attempts in a row left on one generation, by their requeue records."""

from __future__ import annotations

import pytest

from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.store.requeues import count_without_progress, write_requeue
from drainfsm.testing.stores import MemoryStore

DRAINED, LOST = Cause("spot_interruption"), Cause.LOST


def record(epoch: int, generation: str | None, cause: str) -> RequeueRecord:
    return RequeueRecord(
        job_id="job",
        epoch=epoch,
        cause=Cause(cause),
        generation_id=generation,
        manifest_digest=generation and "sha256:0",
        step=None if generation is None else 7,
        world_size=1,
        capacity=Capacity(node_count=1),
        recorded_unix_ms=epoch,
    )


@pytest.mark.parametrize(
    ("left_on", "count"),
    [
        ([], 0),
        ([(None, DRAINED)], 1),
        ([(None, DRAINED), (None, LOST), (None, DRAINED)], 3),
        ([("g1", DRAINED), ("g2", DRAINED), ("g2", LOST)], 2),
        ([(None, DRAINED), ("g1", DRAINED)], 1),
        ([("g1", DRAINED), ("g1", Cause.FAILED), ("g1", DRAINED)], 1),
        ([("g1", Cause.FINISHED)], 0),
        ([("g1", DRAINED)] * 9, 5),
    ],
)
def test_the_row_ends_where_something_was_committed_or_the_job_ended_by_itself(
    left_on: list[tuple[str | None, str]], count: int
) -> None:
    store = MemoryStore()
    for epoch, (generation, cause) in enumerate(left_on, 1):
        write_requeue(store, record(epoch, generation, cause))
    assert count_without_progress(store, epoch=len(left_on), most=5) == count
