"""The all-reduce at the end of every step: nobody completes it before everybody is there."""

from __future__ import annotations

from collections.abc import Callable

from drainfsm_kit.simulator.timeline import Timeline

Completed = Callable[[int], None]


class Collective:
    """Of one incarnation of the job's ranks. One that stays away holds up all others."""

    def __init__(self, timeline: Timeline, *, world_size: int) -> None:
        self._timeline = timeline
        self._world_size = world_size
        self._entered: dict[int, list[tuple[Completed, int]]] = {}
        self._computed_us: dict[int, int] = {}

    def enter(self, step: int, completed: Completed, *, computed_us: int, lag_us: int) -> None:
        """``completed`` is called ``lag_us`` after the last rank's gradients are there."""
        entered = self._entered.setdefault(step, [])
        entered.append((completed, lag_us))
        self._computed_us[step] = max(self._computed_us.get(step, 0), computed_us)
        if len(entered) < self._world_size:
            return
        done_us = self._computed_us.pop(step)
        for completed, lag_us in self._entered.pop(step):
            self._timeline.at(done_us + lag_us, completed, step)
