"""Attempts that are over, as their coordinators leave the store behind."""

from __future__ import annotations

from drainfsm.core.manifest import Commit
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.requeues import write_requeue

MINUTE_MS = 60_000
NOW = 10_000 * MINUTE_MS
ONE_NODE = Capacity(node_count=1)


def leave(
    store: ObjectStore,
    *,
    epoch: int,
    cause: Cause,
    commits: bool,
    now_unix_ms: int = NOW,
    capacity: Capacity = ONE_NODE,
) -> None:
    """One attempt of a minute of job ``j``; ten minutes from one to the next."""
    log, at = CommitLog(store, job_id="j"), now_unix_ms + epoch * 10 * MINUTE_MS
    log.claim(attempt_id=f"a{epoch}", now_unix_ms=at)
    if commits:
        name = f"e{epoch:06d}-s{epoch:012d}-p"
        commit = Commit(
            job_id="j",
            epoch=epoch,
            attempt_id=f"a{epoch}",
            generation_id=name,
            manifest_digest="sha256:0",
            step=epoch,
            world_size=1,
            total_bytes=1,
            file_count=1,
            committed_unix_ms=at + 30_000,
        )
        log.publish(commit)
    head = log.head().commit
    write_requeue(
        store,
        RequeueRecord(
            job_id="j",
            epoch=epoch,
            cause=cause,
            generation_id=head.generation_id if head else None,
            manifest_digest=head.manifest_digest if head else None,
            step=head.step if head else None,
            world_size=1,
            capacity=capacity,
            recorded_unix_ms=at + MINUTE_MS,
        ),
    )
