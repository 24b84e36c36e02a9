"""The one place that reads clocks: wall time, anchored once to the monotonic clock."""

from __future__ import annotations

import time


class Clock:
    """UTC milliseconds that no step of the wall clock moves."""

    def __init__(self) -> None:
        self._wall_ns = time.time_ns()
        self._monotonic_ns = time.monotonic_ns()

    def now_unix_ms(self) -> int:
        return (self._wall_ns + time.monotonic_ns() - self._monotonic_ns) // 1_000_000

    def seconds_until(self, unix_ms: int) -> float:
        """Never negative."""
        return max(0.0, (unix_ms - self.now_unix_ms()) / 1_000)


def monotonic_ms() -> int:
    """For durations inside one process."""
    return time.monotonic_ns() // 1_000_000
