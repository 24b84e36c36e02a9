"""The events of one decision while it is being made."""

from __future__ import annotations

from drainfsm.core.events import Event, Fact
from drainfsm.core.fold import evolve
from drainfsm.core.inputs import Input
from drainfsm.core.state import Drain, State
from drainfsm.errors import InputRejectedError


class Draft:
    """Collects events and the state after them, so that each is checked against the table."""

    def __init__(self, state: State, *, now_unix_ms: int) -> None:
        self.state = state
        self.now_unix_ms = now_unix_ms
        self.events: list[Event] = []

    @property
    def drain(self) -> Drain:
        """The open drain."""
        return self.state.current

    @property
    def waited_ms(self) -> int:
        """Since the ranks were asked to hold; 0: they were not."""
        hold = self.drain.hold
        return 0 if hold is None else self.now_unix_ms - hold.from_unix_ms

    def add(self, event: Event) -> None:
        self.state = evolve(self.state, event)
        self.events.append(event)


def reject(state: State, given: Input | Fact, reason: str) -> InputRejectedError:
    return InputRejectedError(type(given).__name__, phase=state.phase, reason=reason)
