"""Put-if-absent until the answer is certain."""

from __future__ import annotations

import time
from collections.abc import Callable

from drainfsm.core.backoff import backoff_s
from drainfsm.errors import SlotTakenError, StoreUnreachableError
from drainfsm.store.base import ObjectStore

PUTS_MAX = 4
"""Tries to settle an ambiguous answer of the store."""

PUT_PAUSE_S = 0.1
"""Before the second try; doubles from there. The pauses stay well under a commit allowance."""


def put_settled(
    store: ObjectStore, name: str, data: bytes, *, pause: Callable[[float], None] = time.sleep
) -> bool:
    """Create the object; True if it holds ``data`` now, False if it holds something else.

    An ambiguous answer is settled by putting the same bytes again: whichever of the two arrives
    first, the object holds them, and a put that arrives late finds the name taken.

    Raises:
        StoreUnreachableError: no answer; the same call again settles it.
    """
    for attempt in range(1, PUTS_MAX + 1):
        try:
            store.put_if_absent(name, data)
        except SlotTakenError:
            return store.get(name) == data
        except StoreUnreachableError:
            if attempt == PUTS_MAX:
                raise
            pause(backoff_s(attempt, first_s=PUT_PAUSE_S, longest_s=PUT_PAUSE_S * 2**PUTS_MAX))
        else:
            return True
    raise AssertionError("unreachable: the last try returns or raises")
