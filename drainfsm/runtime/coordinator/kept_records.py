"""Records that a full disk kept from their journal, and that the store has, come back into it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from drainfsm.core.codec import decode_as_stored, decode_lines
from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import Journal
from drainfsm.store import ObjectStore
from drainfsm.store.kept_log import KEPT, kept_objects

ATTEMPTS_MAX = 8
"""The newest that are looked at: a start does not wait long for it."""


def bring_back(
    store: ObjectStore,
    open_journal: Callable[[int], Journal],
    epochs: Iterable[int],
    *,
    warn: Callable[[str], None],
) -> None:
    """Into the journals of attempts that ended before they could be written, so that they are
    shipped like any other. ``epochs``: of the journals that are on this machine. What does not
    come back now may at a later start: nothing waits for it."""
    try:
        for epoch in sorted(epochs)[-ATTEMPTS_MAX:]:
            lines = [data for _, data in kept_objects(store, epoch=epoch)]
            if not lines:
                continue
            with contextlib.closing(open_journal(epoch)) as journal:
                for data in lines:
                    found = decode_lines(data, each=decode_as_stored)
                    journal.append(*(one for one in found if one.follows >= journal.count))
    except (DrainfsmError, OSError) as error:
        warn(f"records that the store keeps under {KEPT} are not in the journal yet: {error}")
