"""Requeue records in the store: what the next attempt must restore, exactly."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from drainfsm.core.codec import decode_object, encode_object
from drainfsm.core.manifest import Commit
from drainfsm.core.notice import Cause
from drainfsm.core.requeue import Capacity, Digests, RequeueRecord
from drainfsm.errors import (
    CommitLogError,
    FormatUnknownError,
    ManifestMismatchError,
    RestoreRefusedError,
)
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import Claimed, CommitLog, Head
from drainfsm.store.generations import read_manifest
from drainfsm.store.settling import put_settled

REQUEUE = "requeue/"
_FILE = re.compile(r"(\d{6,})\.json")


def write_requeue(
    store: ObjectStore, record: RequeueRecord, *, pause: Callable[[float], None] = time.sleep
) -> None:
    """Make the record durable. The same one again changes nothing.

    Raises:
        CommitLogError: the epoch has another record already.
    """
    if not put_settled(store, _name(record.epoch), encode_object(record), pause=pause):
        raise CommitLogError(
            f"{_name(record.epoch)} is there already, with other content: "
            "an attempt leaves one requeue record"
        )


def read_requeue(store: ObjectStore, *, epoch: int) -> RequeueRecord | None:
    """The record that the attempt of that epoch left; None if it left none.

    Raises:
        CommitLogError: the record is garbled or of another epoch.
    """
    data = store.get(_name(epoch))
    if data is None:
        return None
    try:
        record = decode_object(data, RequeueRecord, what=_name(epoch))
    except ManifestMismatchError as error:
        raise CommitLogError(str(error)) from error
    if record.epoch != epoch:
        raise CommitLogError(f"{_name(epoch)} is of epoch {record.epoch}")
    return record


def check_restorable(
    store: ObjectStore, log: CommitLog, head: Head, *, damaged_layout: dict[str, int] | None = None
) -> None:
    """Check that what the next attempt would restore is there. Called before it claims, so that a
    refusal costs no claim.

    Raises:
        CommitLogError: a requeue record is of an attempt that no slot claims, or garbled.
        RestoreRefusedError: what the last attempt that left a record has left on is not there.
        ManifestMismatchError: as ``restore_for``.
    """
    left = [int(match[1]) for match in map(_FILE.fullmatch, store.names(REQUEUE)) if match]
    last = max(left, default=0)
    if last > head.epoch:
        raise CommitLogError(
            f"{_name(last)} is of an attempt that no slot claims: the commit log lost slots"
        )
    record = read_requeue(store, epoch=last) if last else None
    if record is not None:  # also where attempts have claimed since, and left none: see Chain.tla
        _check_committed(log, record)
    if last < head.epoch and head.commit is not None:
        _layout_of(store, head.commit, damaged_layout)


def count_without_progress(store: ObjectStore, *, epoch: int, most: int) -> int:
    """How many attempts in a row, up to that epoch, have left on one and the same generation (or on
    none) to come back: at most ``most``. One that finished or failed by itself ends the row.

    Raises:
        CommitLogError: a record is garbled.
        StoreUnreachableError: the store does not answer.
    """
    left_on: set[str | None] = set()
    for count in range(most):
        record = read_requeue(store, epoch=epoch - count) if epoch > count else None
        if record is None or record.cause in (Cause.FINISHED, Cause.FAILED):
            return count
        left_on.add(record.generation_id)
        if len(left_on) > 1:
            return count
    return most


def restore_for(
    store: ObjectStore,
    log: CommitLog,
    claimed: Claimed,
    *,
    now_unix_ms: int,
    node_count: int,
    capacity: Capacity | None = None,
    damaged_layout: dict[str, int] | None = None,
) -> RequeueRecord | None:
    """What the attempt that has just claimed must restore; None for a fresh job.

    An attempt that left no record was lost: its record is derived from the newest commit, and
    written in its place. Its capacity is what an earlier record says, else ``capacity``, else
    ``node_count`` nodes. A commit after the claim cannot be: the claim fenced the lost attempt.
    ``damaged_layout``: stands in the record where the newest commit's manifest cannot be read, so
    that the ranks may fall back to an older one.

    Raises:
        RestoreRefusedError: the record names a generation that no commit names.
        ManifestMismatchError: the manifest of the newest commit is not what the commit says, and
            there is no ``damaged_layout``.
    """
    epoch = claimed.epoch - 1
    if epoch == 0:
        return None
    record = read_requeue(store, epoch=epoch)
    if record is None:
        record = _lost(
            store,
            claimed,
            job_id=log.job_id,
            now_unix_ms=now_unix_ms,
            capacity=capacity or Capacity(node_count=node_count),
            damaged_layout=damaged_layout,
        )
        if not put_settled(store, _name(epoch), encode_object(record)):
            record = read_requeue(store, epoch=epoch) or record  # it is not dead, and was faster
    _check_committed(log, record)
    return record


def _lost(
    store: ObjectStore,
    claimed: Claimed,
    *,
    job_id: str,
    now_unix_ms: int,
    capacity: Capacity,
    damaged_layout: dict[str, int] | None,
) -> RequeueRecord:
    epoch = claimed.epoch - 1
    before = read_requeue(store, epoch=epoch - 1) if epoch > 1 else None
    commit = claimed.head.commit
    return RequeueRecord(
        job_id=job_id,
        epoch=epoch,
        cause=Cause.LOST,
        generation_id=commit.generation_id if commit else None,
        manifest_digest=commit.manifest_digest if commit else None,
        step=commit.step if commit else None,
        world_size=commit.world_size if commit else 0,
        layout=_layout_of(store, commit, damaged_layout) if commit else {},
        digests=before.digests if before else Digests(),
        capacity=before.capacity if before else capacity,
        recorded_unix_ms=now_unix_ms,
        store_id=claimed.store_id,
    )


def _layout_of(
    store: ObjectStore, commit: Commit, damaged_layout: dict[str, int] | None
) -> dict[str, int]:
    try:
        return read_manifest(
            store, generation_id=commit.generation_id, digest=commit.manifest_digest
        ).layout
    except FormatUnknownError:
        raise
    except ManifestMismatchError:
        if damaged_layout is None:
            raise
        return damaged_layout


def _check_committed(log: CommitLog, record: RequeueRecord) -> None:
    if record.job_id != log.job_id:
        raise RestoreRefusedError(
            f"the requeue record of epoch {record.epoch} is of job {record.job_id!r}, "
            f"not {log.job_id!r}"
        )
    if record.store_id and record.store_id != log.store_id:
        raise RestoreRefusedError(
            f"the requeue record of epoch {record.epoch} is of store {record.store_id}, and this "
            f"one is {log.store_id or 'an unknown one'}"
        )
    if record.generation_id is None:
        return
    found = log.find(record.generation_id)
    if found is None:
        raise RestoreRefusedError(
            f"the requeue record of epoch {record.epoch} names generation {record.generation_id}, "
            "which no commit names: the commit log lost slots, or the record is not of this store"
        )
    commit = found[1]
    if (commit.manifest_digest, commit.step) != (record.manifest_digest, record.step):
        raise RestoreRefusedError(
            f"the requeue record of epoch {record.epoch} and slot {found[0]} disagree about "
            f"generation {record.generation_id}"
        )


def _name(epoch: int) -> str:
    return REQUEUE + _file(epoch)


def _file(epoch: int) -> str:
    return f"{epoch:06d}.json"
