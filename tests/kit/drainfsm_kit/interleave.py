"""Runs several pieces of blocking code one step at a time, in an order that the test chooses.

Each piece runs in a thread of its own that stops at every ``gate()``; exactly one runs at a time,
so the same choices give the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

STEP_S_MAX = 30.0
"""A piece that neither reaches a gate nor ends in this time hangs: the test fails."""


class Actor:
    """One piece of code under the control of an ``Interleaving``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.over = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)

    def gate(self) -> None:
        """Called by the piece: stop here until the test lets it go on."""
        self._stopped.release()
        self._go.acquire()

    def _run(self, work: Callable[[Actor], None]) -> None:
        self._go.acquire()
        try:
            work(self)
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._stopped.release()

    def step(self) -> None:
        """Called by the test: let it run to its next gate, or to its end."""
        self._go.release()
        if not self._stopped.acquire(timeout=STEP_S_MAX):
            raise AssertionError(f"{self.name} neither reached a gate nor ended")


class Interleaving:
    """The pieces of one run. Ends what is left of them when the context ends."""

    def __init__(self, pieces: dict[str, Callable[[Actor], None]]) -> None:
        self.actors = [Actor(name) for name in pieces]
        self._threads = [
            threading.Thread(target=actor._run, args=(work,), name=actor.name, daemon=True)
            for actor, work in zip(self.actors, pieces.values(), strict=True)
        ]

    def __enter__(self) -> Interleaving:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for actor in self.runnable:
            while not actor.over:
                actor.step()
        for thread in self._threads:
            thread.join()

    @property
    def runnable(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.over]
