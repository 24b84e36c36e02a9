"""Decisions on record: below ``decisions/`` in a checkpoint store, or in a state directory.

They are made outside every attempt, like drills, so they have no log to go to: a log has one
writer. Each is an object of its own.
"""

from __future__ import annotations

import secrets

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.errors import RecordUnreadableError, StoreError
from drainfsm.policy.events import Decision
from drainfsm.store.base import ObjectStore
from drainfsm.store.settling import put_settled

DECISIONS = "decisions/"
INSTANT_DIGITS = 13
"""Of milliseconds since 1970, until the year 2286: names sort as their instants do."""


def record_decision(store: ObjectStore, decision: Decision) -> str:
    """Make it durable; returns the object's name.

    Raises:
        StoreUnreachableError: the store does not answer.
    """
    instant = f"{decision.at_unix_ms:0{INSTANT_DIGITS}d}"
    name = f"{DECISIONS}{instant}-{secrets.token_hex(8)}.json"
    if not put_settled(store, name, msgspec.json.encode(decision) + b"\n"):
        raise StoreError(f"{name} is there already, with other content")
    return name


def read_decisions(store: ObjectStore) -> list[Decision]:
    """Oldest first.

    Raises:
        RecordUnreadableError: names the object.
        StoreUnreachableError: the store does not answer.
    """
    names = [DECISIONS + name for name in sorted(store.names(DECISIONS))]
    found: list[Decision] = []
    for name, data in zip(names, store.get_each(names), strict=True):
        if data is not None:  # removed since it was listed
            found.append(_decoded(name, data))
    return found


def _decoded(name: str, data: bytes) -> Decision:
    def unreadable(reason: str) -> RecordUnreadableError:
        return RecordUnreadableError(f"{name}: {reason}")

    decision: Decision = read_json(data, Decision, unreadable)  # type: ignore[arg-type]
    return decision
