"""When a periodic save is due: on every rank at the same step, without asking every step.

By steps that is a count. By time the coordinator turns seconds into steps, from how long steps
took, once at the start of an attempt and again at every save.
"""

from __future__ import annotations

import math
import time

from drainfsm.checkpoint.exchange import Exchange

AGREE_AT = 3
"""Boundaries of an attempt before time is turned into steps the first time: the first steps are
slow (compilation, warm caches), and say little about the later ones."""


class Cadence:
    def __init__(self, *, every_steps: int, every_s: int) -> None:
        self._every_steps = every_steps
        self._every_s = every_s
        self._boundaries = 0
        self._due_step: int | None = None
        self._timed_step = 0
        self._timed_at = 0.0

    def due(self, step: int) -> bool:
        """A save is due at this boundary. Counted in steps done since step 0, so that attempts
        save at the same steps wherever they began."""
        by_count = self._every_steps > 0 and (step + 1) % self._every_steps == 0
        return by_count or (self._due_step is not None and step >= self._due_step)

    def passed(self, step: int) -> bool:
        """Call at every boundary. True: the ranks must ``agree`` here, though no save is due."""
        if self._every_s == 0:
            return False
        self._boundaries += 1
        if self._boundaries == 1:
            self._time(step)
        return self._boundaries == AGREE_AT

    def agree(self, step: int, exchange: Exchange) -> None:
        """Collective: the coordinator's clock says at which step the next save is due."""
        if self._every_s > 0:
            self._due_step = exchange.from_coordinator(lambda: self._next_due(step))
            self._time(step)

    def _next_due(self, step: int) -> int:
        steps = max(1, step - self._timed_step)
        step_s = (time.monotonic() - self._timed_at) / steps
        return step + max(1, math.ceil(self._every_s / max(step_s, 1e-6)))

    def _time(self, step: int) -> None:
        self._timed_step, self._timed_at = step, time.monotonic()
