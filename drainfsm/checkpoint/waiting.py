"""How the main thread waits for a save that a thread of its own writes. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from drainfsm.errors import DrainfsmError

POLL_S = 0.02
"""How often the main thread checks whether the save it waits for was given up."""

GIVE_UP_S = 2.0
"""How long a save that was given up may take to notice. Then it is left behind: its thread waits
for a peer that no longer answers, and ends with the process."""


def wait_while_wanted(event: threading.Event, given_up: Callable[[], bool]) -> bool:
    """Until the event is set. False: it is not, and the save was given up."""
    while not event.wait(POLL_S):
        if given_up():
            return event.wait(GIVE_UP_S)
    return True


def reason_of(error: Exception) -> str:
    """For a report. Our own errors explain themselves; others are given with their class."""
    return str(error) if isinstance(error, DrainfsmError) else f"{type(error).__name__}: {error}"
