"""How far attempts' logs had come, as commits and requeue records say."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UnsetType

from drainfsm.core.chain import LogHead
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.requeues import read_requeue
from drainfsm.store.slots import PREFIX, slot_name


class KeptHead(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    head: LogHead
    where: str
    """The object that says so."""


def log_heads(store: ObjectStore, *, job_id: str) -> Iterator[KeptHead]:
    """Of the commits, then of the requeue records, each oldest first. What is not chained says
    nothing.

    Raises:
        CommitLogError: the commit log or a record is damaged, or of another job.
        StoreUnreachableError: the store does not answer.
    """
    log = CommitLog(store, job_id=job_id)
    newest_epoch = log.head().epoch
    for slot, commit in log.commits():
        if not isinstance(commit.log, UnsetType):
            name = f"{PREFIX}{slot_name(slot)}"
            yield KeptHead(epoch=commit.epoch, head=commit.log, where=name)
    for epoch in range(1, newest_epoch + 1):
        record = read_requeue(store, epoch=epoch)
        if record is not None and not isinstance(record.log, UnsetType):
            name = f"requeue record of attempt {epoch}"
            yield KeptHead(epoch=epoch, head=record.log, where=name)
