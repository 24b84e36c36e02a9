"""A simulated machine: its wall clock, its processes, its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline

if TYPE_CHECKING:
    from drainfsm_kit.simulator.disk import Disk

BEGIN_UNIX_MS = 1_800_000_000_000
"""What a right clock shows when a simulation begins."""


class MachineClock(NamedTuple):
    """How the time that a process keeps differs from the true time."""

    skew_ms: int = 0
    drift_ppm: int = 0

    def true_ms(self, unix_ms: int) -> int:
        """When it shows that."""
        return round((unix_ms - self.skew_ms - BEGIN_UNIX_MS) / (1 + self.drift_ppm / 1e6))

    def unix_ms(self, true_ms: int) -> int:
        """What it shows then."""
        return BEGIN_UNIX_MS + self.skew_ms + round(true_ms * (1 + self.drift_ppm / 1e6))


class Machine:
    """A ``TimeSource``: UTC, as far as this machine knows it."""

    def __init__(
        self, name: str, timeline: Timeline, disk: Disk, *, skew_ms: int, drift_ppm: int = 0
    ) -> None:
        self.name = name
        self.disk = disk
        self.skew_ms = skew_ms
        """Its wall clock less the true time, but for the drift."""

        self.drift_ppm = drift_ppm
        """Microseconds that its clocks gain in a second; negative: lose."""

        self.powered = True
        self._timeline = timeline

    def time_ns(self) -> int:
        return self.monotonic_ns() + (BEGIN_UNIX_MS + self.skew_ms) * US_PER_MS * 1_000

    def monotonic_ns(self) -> int:
        return self._timeline.now_us * (1_000_000 + self.drift_ppm) // 1_000

    def clock(self) -> MachineClock:
        """As a process that starts now keeps it: steps of the wall clock change nothing."""
        return MachineClock(self.skew_ms, self.drift_ppm)


def true_unix_ms(timeline: Timeline) -> int:
    return BEGIN_UNIX_MS + timeline.now_ms
