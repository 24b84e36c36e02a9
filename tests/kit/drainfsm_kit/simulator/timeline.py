"""Virtual time: one queue of everything that happens in a simulated world, strictly ordered."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

US_PER_MS = 1_000
US_PER_S = 1_000_000

STEPS_MAX = 500_000
"""Callbacks at one instant before it is called a livelock."""


class Runner(Protocol):
    """A process: may be stopped or dead when its turn comes."""

    def run(self, handle: asyncio.Handle) -> None: ...


class Handle(Protocol):
    def cancelled(self) -> bool: ...


class Timeline:
    """Time stands still while anything is ready, and then jumps to the next timer.

    What is due at one instant runs in the order in which it was asked for.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.steps = 0
        """Callbacks run so far."""

        self.cpu_ns: dict[object, int] | None = None
        """Where set: processor time by process, measured."""

        self._asked = 0
        self._timers: list[tuple[int, int, Runner | None, Any]] = []
        self._ready: deque[tuple[Runner | None, Any]] = deque()

    @property
    def now_ms(self) -> int:
        return self.now_us // US_PER_MS

    def at(self, when_us: int, call: Callable[..., object], *args: object) -> None:
        """Something that the world does by itself, whatever becomes of any process."""
        self._asked += 1
        heapq.heappush(self._timers, (when_us, self._asked, None, (call, args)))

    def after(self, delay_us: int, call: Callable[..., object], *args: object) -> None:
        self.at(self.now_us + delay_us, call, *args)

    def soon(self, runner: Runner, handle: asyncio.Handle) -> None:
        self._ready.append((runner, handle))

    def timer(self, when_us: int, runner: Runner, handle: asyncio.TimerHandle) -> None:
        self._asked += 1
        heapq.heappush(self._timers, (when_us, self._asked, runner, handle))

    def run(self, *, until_us: int, over: Callable[[], bool]) -> None:
        """Until nothing is left to do, ``over`` says so, or that time is reached."""
        timers = self._timers
        while True:
            self._run_ready()
            while timers and timers[0][2] is not None and timers[0][3].cancelled():
                heapq.heappop(timers)
            if not timers or over():
                return
            when_us = timers[0][0]
            if when_us > until_us:
                self.now_us = until_us
                return
            self.now_us = max(self.now_us, when_us)
            while timers and timers[0][0] <= self.now_us:
                _, _, runner, what = heapq.heappop(timers)
                self._ready.append((runner, what))

    def drain(self) -> None:
        """What is ready now, and what follows from it at this instant."""
        self._run_ready()

    def _run_ready(self) -> None:
        ready, begun = self._ready, self.steps
        while ready:
            runner, what = ready.popleft()
            self.steps += 1
            if self.steps - begun > STEPS_MAX:
                raise AssertionError(f"livelock: {STEPS_MAX} callbacks at {self.now_us} us")
            if runner is None:
                call, args = what
                call(*args)
            elif self.cpu_ns is None:
                runner.run(what)
            else:
                began_ns = time.process_time_ns()
                runner.run(what)
                spent_ns = time.process_time_ns() - began_ns
                self.cpu_ns[runner] = self.cpu_ns.get(runner, 0) + spent_ns
