"""Which store this is: ``store.json``, written once, at the first claim.

A store that lacks it, or has another, is not the one that an attempt claimed: it was unmounted,
moved or replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from drainfsm.core.codec import decode_object, encode_object
from drainfsm.core.manifest import FORMAT_VERSION
from drainfsm.errors import (
    CommitLogError,
    ManifestMismatchError,
    OtherJobsStoreError,
)
from drainfsm.store.base import ObjectStore
from drainfsm.store.settling import put_settled

IDENTITY = "store.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """``store.json``."""

    format_version: int = FORMAT_VERSION
    store_id: str
    job_id: str
    url: str
    """As the first claim called it, where it was probed: see ``store/probe.py``."""

    created_unix_ms: int


def read_identity(store: ObjectStore, *, job_id: str) -> Identity | None:
    """None: nobody has claimed the store, or only attempts that knew of no identities.

    Raises:
        OtherJobsStoreError: it is the store of another job.
        CommitLogError: garbled.
    """
    data = store.get(IDENTITY)
    if data is None:
        return None
    try:
        identity = decode_object(data, Identity, what=IDENTITY)
    except ManifestMismatchError as error:
        raise CommitLogError(str(error)) from error
    if identity.job_id != job_id:
        raise OtherJobsStoreError(
            f"the store at {store.url} belongs to job {identity.job_id!r}: "
            f"give job {job_id!r} a store of its own"
        )
    return identity


def write_identity(
    store: ObjectStore, identity: Identity, *, pause: Callable[[float], None] = time.sleep
) -> Identity:
    """The identity that the store has now: this one, or that of a rival who was faster."""
    if not put_settled(store, IDENTITY, encode_object(identity), pause=pause):
        identity = read_identity(store, job_id=identity.job_id) or identity
    return identity
