"""What a rank is doing: phases outside the step loop, and how long its steps take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

import msgspec

from drainfsm.runtime.clock import monotonic_ms

STARTING = "startup"
"""Before the first step: imports, restore, compilation."""

EXACT_STEPS = 4
"""This many first steps are timed at the boundary; later ones by the reader thread's samples."""

NEWS_MS_MIN = 1_000
"""A change of less than a quarter of this decides no save."""

RECENT_STEPS = 8
"""The step time reported is the longest of this many."""


class OpenPhase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    since_ms: int
    expected_ms: int | None

    def left_ms(self) -> int | None:
        if self.expected_ms is None:
            return None
        return max(0, self.expected_ms - (monotonic_ms() - self.since_ms))


class StepTimes:
    """Step durations, from the instants at which the step counter was seen to move.

    The hot path of a step stores one number and reads no clock; so a sampler looks at the number
    now and then. A step that is seen late counts as longer than it was, never as shorter over
    several.
    """

    def __init__(self, *, step: int) -> None:
        self._step = step
        self._moved_ms: int | None = None
        self._recent_ms: deque[int] = deque(maxlen=RECENT_STEPS)
        self._paused_ms = 0
        """The sum since the step counter was last seen to move."""

        self._paused_since_ms: int | None = None
        self._told_ms = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done inside (a save, a phase) is not part of a step."""
        if self._paused_since_ms is not None:
            yield
            return
        self._paused_since_ms = began_ms = monotonic_ms()
        try:
            yield
        finally:
            self._paused_since_ms = None
            self._paused_ms += monotonic_ms() - began_ms

    def saw(self, step: int) -> None:
        """The last completed step, as of now."""
        if step == self._step:
            return
        now_ms, since_ms = monotonic_ms(), self._paused_since_ms
        paused_ms, self._paused_ms = self._paused_ms, 0
        if since_ms is not None:  # paused after the step that is seen only now
            now_ms = since_ms
        if self._moved_ms is not None and step > self._step:
            took_ms = max(0, now_ms - self._moved_ms - paused_ms)
            self._recent_ms.append(-(-took_ms // (step - self._step)))
        self._step, self._moved_ms = step, now_ms

    def news_ms(self) -> int | None:
        """The longest recent step; None: it is what was reported before, within a quarter."""
        longest_ms, told_ms = self.longest_ms, self._told_ms
        if 4 * abs(longest_ms - told_ms) <= max(longest_ms, told_ms, NEWS_MS_MIN):
            return None
        self._told_ms = longest_ms
        return longest_ms

    @property
    def longest_ms(self) -> int:
        """Of the recent steps; 0: none was measured."""
        return max(self._recent_ms, default=0)


class LearnedPhases:
    """Durations of phases seen before, by name: what to expect of the next one."""

    def __init__(self) -> None:
        self._longest_ms: dict[str, int] = {}

    def begin(self, name: str, *, expected_s: float | None) -> OpenPhase:
        expected_ms = self._longest_ms.get(name)
        if expected_s is not None and isfinite(expected_s):
            expected_ms = max(expected_ms or 0, round(expected_s * 1_000))
        return OpenPhase(name=str(name), since_ms=monotonic_ms(), expected_ms=expected_ms)

    def end(self, phase: OpenPhase) -> None:
        took_ms = monotonic_ms() - phase.since_ms
        self._longest_ms[phase.name] = max(took_ms, self._longest_ms.get(phase.name, 0))
