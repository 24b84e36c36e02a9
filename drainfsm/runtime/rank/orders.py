"""The orders that a rank got, and what its main thread does about them at a step boundary."""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable

from drainfsm.core.orders import SaveOrder
from drainfsm.runtime.wire import rank_messages as m


class Action(enum.Enum):
    PASS = "pass"
    """Train on."""

    QUIESCE = "quiesce"
    """The stop step is done: finish what is in flight, and report it."""

    SAVE = "save"
    LEAVE = "leave"


PASS, QUIESCE, SAVE, LEAVE = Action.PASS, Action.QUIESCE, Action.SAVE, Action.LEAVE


class StandingOrders:
    """Written by the reader thread, asked by the main thread, which waits here while held."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._stop_step: int | None = None
        self._quiesced = False
        self._saves: deque[SaveOrder] = deque()
        self._leaving = False
        self._leave_step: int | None = None

    @property
    def draining(self) -> bool:
        return self._held or self._leaving

    def accept(self, order: m.ToRank, raise_flag: Callable[[], None]) -> None:
        """On the reader thread. The flag is up before this returns."""
        with self._changed:
            self._apply(order)
            raise_flag()
            self._changed.notify_all()

    def _apply(self, order: m.ToRank) -> None:
        match order:
            case m.Hold() if not self._held:
                self._held = True
                self._stop_step = None
                self._quiesced = False
            case m.Release(stop_step=stop_step):
                self._held = True
                self._stop_step = stop_step
            case m.Resume():
                self._held = False
                self._stop_step = None
            case m.Save(order=save):
                self._saves.append(save)
            case m.Leave(at_step=at_step):
                self._leaving = True
                self._leave_step = at_step
            case _:
                pass

    def next(self, step: int, relax: Callable[[], None]) -> tuple[Action, SaveOrder | None]:
        """On the main thread, at the end of ``step``: what to do. Waits while the rank is held."""
        with self._changed:
            while (found := self._look(step, relax)) is None:
                self._changed.wait()
            return found

    def look(self, step: int, relax: Callable[[], None]) -> tuple[Action, SaveOrder | None] | None:
        """The same without waiting; None: the rank is held."""
        with self._changed:
            return self._look(step, relax)

    def _look(self, step: int, relax: Callable[[], None]) -> tuple[Action, SaveOrder | None] | None:
        action = self._decide(step, relax)
        if action is None:
            return None
        return action, self._saves.popleft() if action is SAVE else None

    def _decide(self, step: int, relax: Callable[[], None]) -> Action | None:
        if self._leaving:
            return LEAVE if self._leave_step is None or step >= self._leave_step else PASS
        if not self._held:
            relax()
            return PASS
        if self._stop_step is None:
            return None
        if step < self._stop_step:
            return PASS
        if not self._quiesced:
            self._quiesced = True
            return QUIESCE
        return SAVE if self._saves else None
