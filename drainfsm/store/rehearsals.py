"""Rehearsed drains on record: which scenario was played with a job's command, when, and how.

They are played outside of the job, in stores and logs of their own, which are thrown away. So each
verdict is an object of its own in the job's store, as a rehearsed restore is.
"""

from __future__ import annotations

import secrets

import msgspec

from drainfsm.core.foreign import UNREADABLE
from drainfsm.errors import RecordUnreadableError, StoreError
from drainfsm.store.base import ObjectStore
from drainfsm.store.settling import put_settled

REHEARSALS = "rehearsals/"


class DrainRehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one scenario."""

    job_id: str
    at_unix_ms: int
    scenario: str
    passed: bool
    decision: str
    """On the save."""

    took_ms: int | None = None
    """From the first notice to no process left."""

    wrong: str = ""
    """What it failed by."""


def record_rehearsal(store: ObjectStore, rehearsed: DrainRehearsed) -> str:
    """Make it durable; returns the object's name."""
    identity = secrets.token_hex(8)
    name = f"{REHEARSALS}{rehearsed.scenario}-{rehearsed.at_unix_ms}-{identity}.json"
    if not put_settled(store, name, msgspec.json.encode(rehearsed) + b"\n"):
        raise StoreError(f"{name} is there already, with other content")
    return name


def read_rehearsals(store: ObjectStore, *, job_id: str) -> tuple[DrainRehearsed, ...]:
    """Those of the job, oldest first.

    Raises:
        RecordUnreadableError: names the object.
    """
    found = []
    for name in store.names(REHEARSALS):
        data = store.get(REHEARSALS + name)
        if data is None:  # removed since it was listed
            continue
        try:
            rehearsed = msgspec.json.decode(data, type=DrainRehearsed)
        except UNREADABLE as error:
            raise RecordUnreadableError(f"{REHEARSALS}{name}: {error}") from error
        if rehearsed.job_id == job_id:
            found.append(rehearsed)
    return tuple(sorted(found, key=lambda one: one.at_unix_ms))
