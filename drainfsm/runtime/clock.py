"""The one place that reads clocks: wall time, anchored once to the monotonic clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class TimeSource(Protocol):
    """The part of ``time`` that is read here."""

    def time_ns(self) -> int: ...
    def monotonic_ns(self) -> int: ...


class Clock:
    """UTC milliseconds that no step of the wall clock moves."""

    def __init__(self, source: TimeSource = time) -> None:
        self._source = source
        self._wall_ns = source.time_ns()
        self._monotonic_ns = source.monotonic_ns()

    def now_unix_ms(self) -> int:
        return (self._wall_ns + self._source.monotonic_ns() - self._monotonic_ns) // 1_000_000

    @property
    def set_ms(self) -> int:
        """How far the wall clock was set forward since; negative: back."""
        return self._source.time_ns() // 1_000_000 - self.now_unix_ms()

    def seconds_until(self, unix_ms: int) -> float:
        """Never negative."""
        return max(0.0, (unix_ms - self.now_unix_ms()) / 1_000)


def monotonic_ms() -> int:
    """For durations inside one process."""
    return time.monotonic_ns() // 1_000_000


def loop_ms() -> int:
    """The same inside an event loop, by the loop's own clock."""
    return int(asyncio.get_running_loop().time() * 1_000)


class RunningTime:
    """Milliseconds in which this process ran, to time the silence of others: while the whole
    machine, or every process of a job, was paused, they could not speak.

    Read it at least every ``pause_ms``: a longer gap between two readings counts as a pause.
    """

    def __init__(self, *, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._read_ms = loop_ms()
        self._ran_ms = 0

    def now_ms(self) -> int:
        now_ms = loop_ms()
        self._ran_ms += min(now_ms - self._read_ms, self._pause_ms)
        self._read_ms = now_ms
        return self._ran_ms
