"""A simulated machine: its wall clock, its processes, its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline

if TYPE_CHECKING:
    from drainfsm_kit.simulator.disk import Disk
    from drainfsm_kit.simulator.process import Process

BEGIN_UNIX_MS = 1_800_000_000_000
"""What a right clock shows when a simulation begins."""


class Machine:
    """A ``TimeSource``: UTC, as far as this machine knows it."""

    def __init__(self, name: str, timeline: Timeline, disk: Disk, *, skew_ms: int) -> None:
        self.name = name
        self.disk = disk
        self.skew_ms = skew_ms
        """Its wall clock less the true time."""

        self.powered = True
        self.processes: set[Process] = set()
        self._timeline = timeline

    def time_ns(self) -> int:
        now_us = self._timeline.now_us + (BEGIN_UNIX_MS + self.skew_ms) * US_PER_MS
        return now_us * 1_000

    def monotonic_ns(self) -> int:
        return self._timeline.now_us * 1_000


def true_unix_ms(timeline: Timeline) -> int:
    return BEGIN_UNIX_MS + timeline.now_ms
