"""Attempts that are over, into an object store: an object each, written once, for whoever asks when
the stream has forgotten them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from drainfsm.errors import SlotTakenError
from drainfsm.store.base import ObjectStore
from drainfsm.views.history import History


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    added: tuple[str, ...]
    present_count: int
    """Attempts that were there before."""

    changed: tuple[str, ...]
    """There already, and other than now: more of their log has come since. Left as they are."""

    damage: str
    """Not empty: what could not be read."""


def archive(
    jobs: Iterable[History],
    store: ObjectStore,
    *,
    encode: Callable[[History], bytes],
    suffix: str,
    before_unix_ms: int,
) -> Archived:
    """Those whose newest record is from before that instant.

    Raises:
        StoreUnreachableError: it does not answer; what was written stays, and another call goes on.
    """
    added, changed, damage, present_count = list[str](), list[str](), list[str](), 0
    for job in jobs:
        damage += [job.damage] if job.damage else []
        for log in job.logs:
            if log.records[-1].at_unix_ms >= before_unix_ms:
                continue
            name = f"{log.job_id}/{log.epoch:06d}.{suffix}"
            data = encode(History(logs=(log,)))
            try:
                store.put_if_absent(name, data)
                added.append(name)
            except SlotTakenError:
                present_count += 1
                if store.get(name) != data:
                    changed.append(name)
    return Archived(
        added=tuple(added),
        present_count=present_count,
        changed=tuple(changed),
        damage="; ".join(damage),
    )
