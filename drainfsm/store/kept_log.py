"""Records of the log beside the checkpoints: what a full disk kept from the journal, and what had
not reached the stream when its attempt ended. Each object holds lines of an exported log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from drainfsm.core.codec import encode_lines
from drainfsm.core.records import Record
from drainfsm.errors import SlotTakenError
from drainfsm.store.base import ObjectStore

KEPT = "log/"


def keep(store: ObjectStore, records: Sequence[Record]) -> None:
    """Make them durable. The same ones again change nothing.

    Raises:
        StoreUnreachableError: the store does not take them.
    """
    first, last = records[0], records[-1]
    name = f"{KEPT}{first.epoch:06d}/{first.follows:08d}-{last.follows:08d}-{last.id}.jsonl"
    with contextlib.suppress(SlotTakenError):  # its answer was lost before
        store.put_if_absent(name, encode_lines(records))


def kept_objects(store: ObjectStore, *, epoch: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and lines of each, by attempt and position. ``epoch``: of that attempt alone.

    Raises:
        StoreUnreachableError: the store does not answer.
    """
    prefix = KEPT if epoch is None else f"{KEPT}{epoch:06d}/"
    for name in sorted(store.list(prefix)):
        data = store.get(prefix + name)
        if data is not None:
            yield prefix + name, data
