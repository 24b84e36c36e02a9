"""Drills on record: that a committed generation could be read back, or could not, and when.

A drill runs outside every attempt, anywhere, so it has no log to write to: a log has one writer.
Each leaves an object of its own, which holds a record that ``replay --file`` reads too.
"""

from __future__ import annotations

import secrets

from drainfsm.core.codec import decode, encode
from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.records import Record
from drainfsm.errors import RecordUnreadableError, StoreError
from drainfsm.store.base import ObjectStore
from drainfsm.store.settling import put_settled

DRILLS = "drills/"
NO_EPOCH = 0
"""Attempts count from 1."""


def record_drill(
    store: ObjectStore, event: CheckpointDrilled, *, job_id: str, now_unix_ms: int
) -> str:
    """Make it durable; returns the object's name."""
    identity = secrets.token_hex(8)
    record = Record(
        id=identity,
        job_id=job_id,
        epoch=NO_EPOCH,
        follows=0,
        at_unix_ms=now_unix_ms,
        events=(event,),
    )
    name = f"{DRILLS}{event.generation_id}-{now_unix_ms}-{identity}.json"
    if not put_settled(store, name, encode(record) + b"\n"):
        raise StoreError(f"{name} is there already, with other content")
    return name


def read_drills(store: ObjectStore, *, job_id: str) -> list[tuple[int, CheckpointDrilled]]:
    """Every drill of the job with its instant, oldest first.

    Raises:
        RecordUnreadableError: names the object.
    """
    found = []
    for name in store.names(DRILLS):
        data = store.get(DRILLS + name)
        if data is None:  # removed since it was listed
            continue
        try:
            record = decode(data)
        except RecordUnreadableError as error:
            raise RecordUnreadableError(f"{DRILLS}{name}: {error}") from error
        if record.job_id == job_id:
            drilled = [event for event in record.events if isinstance(event, CheckpointDrilled)]
            found += [(record.at_unix_ms, event) for event in drilled]
    return sorted(found, key=lambda drill: drill[0])
