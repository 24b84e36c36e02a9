"""How far the clock of this node is ahead of the coordinator's, whose deadlines it keeps."""

from __future__ import annotations

from collections import deque

from drainfsm.runtime.clock import Clock

HEARD_MAX = 32
"""The least of so many says how far: all of them were under way for a while, one but briefly. Not
of all ever heard, since clocks drift."""


class Offset:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: deque[int] = deque(maxlen=HEARD_MAX)

    def hear(self, coordinator_unix_ms: int) -> None:
        """What the coordinator's clock showed when it said this."""
        self._heard.append(self._clock.now_unix_ms() - coordinator_unix_ms)

    @property
    def ahead_ms(self) -> int:
        """Negative: behind. Too much by as long as the message was under way, never too little, so
        that nothing is cut short."""
        return min(self._heard, default=0)

    def here(self, coordinator_unix_ms: int) -> int:
        """What this node's clock shows at an instant that the coordinator named."""
        return coordinator_unix_ms + self.ahead_ms
