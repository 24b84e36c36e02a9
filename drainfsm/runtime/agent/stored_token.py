"""The job token of agents that were given none: a random one, kept in the store.

Whoever can read it can join the job. In a directory it is a file that only its owner can read, or
it is not written; in a bucket, who may read the bucket may read it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable

from drainfsm.core.foreign import UNREADABLE
from drainfsm.errors import ConfigError, SlotTakenError, StoreError, StoreUnreachableError
from drainfsm.store import ObjectStore, PosixStore

NAME = "token"
TOKEN_BYTES = 32

RENEWED_S, LOOK_S = 30.0, 0.25
"""For node 0 to replace a token that others could read, as earlier versions wrote it."""

INSTEAD = "set DRAINFSM_TOKEN to the same secret on every node"


def stored_token(
    store: ObjectStore, *, node_rank: int, pause: Callable[[float], None] = time.sleep
) -> str:
    """Raises:
    ConfigError: it cannot be kept from others, or is somebody else's.
    StoreUnreachableError: the store does not answer.
    StoreError: what is kept there is not a token.
    """
    token = secrets.token_hex(TOKEN_BYTES).encode()
    if not isinstance(store, PosixStore):
        with contextlib.suppress(SlotTakenError):
            store.put_if_absent(NAME, token)
        return _read(store)
    try:
        return _private(store, token, node_rank=node_rank, pause=pause)
    except ConfigError as error:
        raise ConfigError(f"the job token was not written: {error}; {INSTEAD}") from error
    except StoreUnreachableError as error:
        if isinstance(error.__cause__, PermissionError):
            raise ConfigError(f"the job token is of another user: {error}; {INSTEAD}") from error
        raise


def _read(store: ObjectStore) -> str:
    try:
        return (store.get(NAME) or b"").decode()
    except UNREADABLE as error:
        raise StoreError(f"{NAME} in {store.url} is not a job token: remove it") from error


def _private(
    store: PosixStore, token: bytes, *, node_rank: int, pause: Callable[[float], None]
) -> str:
    with contextlib.suppress(SlotTakenError):
        store.put_private(NAME, token, replaces=False)
    if node_rank == 0 and not store.is_private(NAME):
        store.put_private(NAME, token, replaces=True)
    for _ in range(round(RENEWED_S / LOOK_S)):
        if store.is_private(NAME):
            return _read(store)
        pause(LOOK_S)
    raise ConfigError(f"others can read {store.root / NAME}, and node 0 has not replaced it")
