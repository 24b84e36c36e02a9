"""How far a metadata server's clock is off ours, from the ``Date`` of its answers.

An answer sent at ``s`` and received at ``r`` (our clock) that states second ``d`` was written
between the two, at a server time in ``[d, d + 1 s)``: the offset lies in ``[d - r, d + 1 s - s)``.
Polls hit the second at random places, so the intersection of a few answers is narrow.
"""

from __future__ import annotations

from collections import deque

from drainfsm_adapters.times import from_http_date

DATE_RESOLUTION_MS = 1_000
SAMPLES_MAX = 64
"""A minute or two of polls: enough for a narrow estimate, too short for clocks to drift apart."""


class ServerClock:
    """Converts instants that the platform states into instants of the agent's clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._low_ms = 0
        self._high_ms = 0

    def observe(self, date: str, *, sent_unix_ms: int, received_unix_ms: int) -> None:
        """One more answer. An invalid ``Date`` is ignored."""
        try:
            stated = from_http_date(date)
        except ValueError:
            return
        sample = (stated - received_unix_ms, stated + DATE_RESOLUTION_MS - sent_unix_ms)
        self._samples.append(sample)
        low = max(low for low, _ in self._samples)
        high = min(high for _, high in self._samples)
        if low > high:  # a clock was stepped: what was known before is worth nothing
            self._samples.clear()
            self._samples.append(sample)
            low, high = sample
        self._low_ms, self._high_ms = low, high

    @property
    def offset_ms(self) -> int:
        """Server's clock minus ours, best estimate; 0 before the first answer."""
        return (self._low_ms + self._high_ms) // 2

    @property
    def uncertainty_ms(self) -> int:
        """The true offset lies this close to ``offset_ms``."""
        return -((self._low_ms - self._high_ms) // 2)

    def ours_unix_ms(self, stated_unix_ms: int) -> int:
        """The same instant by our clock."""
        return stated_unix_ms - self.offset_ms
