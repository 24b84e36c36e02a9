"""How far the clock of this node is ahead of the coordinator's, whose deadlines it keeps."""

from __future__ import annotations

from collections import deque

from drainfsm.runtime.clock import Clock

HEARD_MAX = 32
"""The smallest of this many counts: each message was under way for a while, the fastest only
briefly. Older ones are dropped, since clocks drift."""


class Offset:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: deque[int] = deque(maxlen=HEARD_MAX)

    def hear(self, coordinator_unix_ms: int) -> None:
        """What the coordinator's clock showed when it said this."""
        self._heard.append(self._clock.now_unix_ms() - coordinator_unix_ms)

    @property
    def ahead_ms(self) -> int:
        """Negative: behind. Too large by the time that the message took, never too small, so that
        nothing is cut short."""
        return min(self._heard, default=0)

    def here(self, coordinator_unix_ms: int) -> int:
        """What this node's clock shows at an instant that the coordinator named."""
        return coordinator_unix_ms + self.ahead_ms
