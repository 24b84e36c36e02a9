"""What a rank is doing: phases outside the step loop, and how long its steps take."""

from __future__ import annotations

from collections import deque

import msgspec

from drainfsm.runtime.clock import monotonic_ms

STARTING = "startup"
"""Before the first step: imports, restore, compilation."""

EXACT_STEPS = 4
"""So many first steps are timed at the boundary; later ones by the reader thread's samples."""

RECENT_STEPS = 8
"""The step time reported is the longest of so many."""


class OpenPhase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    since_ms: int
    expected_ms: int | None

    def left_ms(self) -> int | None:
        if self.expected_ms is None:
            return None
        return max(0, self.expected_ms - (monotonic_ms() - self.since_ms))


class StepTimes:
    """Step durations, from the instants at which the step counter was seen to have moved.

    The hot path of a step stores one number and reads no clock; so a sampler looks at the number
    now and then. A step seen late counts as longer than it was, never as shorter on the whole.
    """

    def __init__(self, *, step: int) -> None:
        self._step = step
        self._moved_ms: int | None = None
        self._recent_ms: deque[int] = deque(maxlen=RECENT_STEPS)

    def saw(self, step: int) -> None:
        """The last completed step, as of now."""
        if step == self._step:
            return
        now_ms = monotonic_ms()
        if self._moved_ms is not None and step > self._step:
            self._recent_ms.append(-(-(now_ms - self._moved_ms) // (step - self._step)))
        self._step, self._moved_ms = step, now_ms

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
        if expected_s is not None:
            expected_ms = max(expected_ms or 0, round(expected_s * 1_000))
        return OpenPhase(name=name, since_ms=monotonic_ms(), expected_ms=expected_ms)

    def end(self, phase: OpenPhase) -> None:
        took_ms = monotonic_ms() - phase.since_ms
        self._longest_ms[phase.name] = max(took_ms, self._longest_ms.get(phase.name, 0))
