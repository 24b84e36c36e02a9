"""Whether a store keeps the promises that the fence stands on.

There are servers that speak like S3 and ignore the condition of a conditional put: two attempts
would both believe that they own the job. So a store is tried before it is claimed the first time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from drainfsm.errors import ConfigError, StoreUnreachableError
from drainfsm.store.base import ObjectStore
from drainfsm.store.settling import put_settled
from drainfsm.store.slots import PREFIX

PROBE = "probe-"
"""Beside the slots, and not taken for one: the probe runs where the log will be."""


def check_promises(store: ObjectStore, *, name: str, pause: Callable[[float], None]) -> None:
    """Checks put-if-absent, reading what was written, and listing it. ``name`` must be unique.

    Raises:
        ConfigError: the store does not keep one of them; says which.
        StoreUnreachableError: it does not answer.
    """
    first, second = b"first", b"second"
    whole = f"{PREFIX}{PROBE}{name}"
    try:
        if not put_settled(store, whole, first, pause=pause):
            _refuse(store, "an object that was just created has other content (read-after-write)")
        if put_settled(store, whole, second, pause=pause):
            _refuse(
                store,
                "an object that is there is replaced by a put that must only create "
                "(put-if-absent, `If-None-Match: *`)",
            )
        if store.get(whole) != first:
            _refuse(store, "an object does not keep its content (put-if-absent)")
        if PROBE + name not in store.names(PREFIX, after=PROBE):
            _refuse(store, "an object that was just created is not listed (list-after-write)")
    finally:
        with contextlib.suppress(StoreUnreachableError):
            store.delete(whole)


def _refuse(store: ObjectStore, what: str) -> None:
    raise ConfigError(
        f"store {store.url} cannot hold a commit log: {what}. Two attempts could both believe that "
        "they own the job; choose another store (docs/operate.md has those that were tried)"
    )
