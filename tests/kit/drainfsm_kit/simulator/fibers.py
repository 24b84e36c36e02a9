"""Blocking code in virtual time: each call has a thread, and exactly one of all threads runs.

A thread gives way where it would wait for the world, and goes on when the world has answered. So
calls interleave at every single request to the store or the disk, in an order that the seed gives.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Resume = Callable[[], None]
Arrange = Callable[[Resume], None]


class Abandoned(BaseException):
    """Raised inside a blocking call whose process has died, so that its thread ends."""


class Owner(Protocol):
    """The process that made the call."""

    dead: bool

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...
    def create_future(self) -> asyncio.Future[Any]: ...


class Fiber:
    def __init__(self, owner: Owner, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.owner = owner
        self.work = work
        self.future = future
        self.arrange: Arrange | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.abandoned = False


class _Carrier:
    """A thread that carries one fiber after another."""

    def __init__(self, idle: list[_Carrier]) -> None:
        self._idle = idle
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.fiber: Fiber | None = None
        threading.Thread(target=self._carry, name="drainfsm-simulated", daemon=True).start()

    def _carry(self) -> None:
        while True:
            self._go.acquire()
            fiber = self.fiber
            assert fiber is not None
            try:
                fiber.result = fiber.work()
            except BaseException as error:
                fiber.error = error
            fiber.over = True
            self.fiber = None
            self._idle.append(self)
            self._back.release()

    def enter(self) -> None:
        """Called by the simulation: run until the fiber gives way or is over."""
        self._go.release()
        self._back.acquire()

    def give_way(self) -> None:
        """Called by the fiber."""
        self._back.release()
        self._go.acquire()


_idle: list[_Carrier] = []


class Fibers:
    """All blocking calls of one simulation."""

    def __init__(self) -> None:
        self._carriers: dict[Fiber, _Carrier] = {}
        self._current: Fiber | None = None

    def start(self, owner: Owner, name: str, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = owner.create_future()
        fiber = Fiber(owner, work, future)
        owner.call_soon(self._begin, fiber)
        return future

    def _begin(self, fiber: Fiber) -> None:
        carrier = _idle.pop() if _idle else _Carrier(_idle)
        carrier.fiber = fiber
        self._carriers[fiber] = carrier
        self._step(fiber)

    def _step(self, fiber: Fiber) -> None:
        self._current = fiber
        self._carriers[fiber].enter()
        self._current = None
        if fiber.over:
            del self._carriers[fiber]
            self._settle(fiber)
            return
        arrange, fiber.arrange = fiber.arrange, None
        assert arrange is not None
        arrange(lambda: fiber.owner.call_soon(self._step, fiber))

    def _settle(self, fiber: Fiber) -> None:
        if fiber.abandoned or fiber.future.done():
            return
        if fiber.error is not None:
            fiber.future.set_exception(fiber.error)
        else:
            fiber.future.set_result(fiber.result)

    def block(self, arrange: Arrange) -> None:
        """Called by blocking code: waits until what ``arrange`` is given has been called."""
        fiber = self._current
        assert fiber is not None, "blocking code outside a simulated thread"
        fiber.arrange = arrange
        self._carriers[fiber].give_way()
        if fiber.abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """After the simulation: end what still waits."""
        for fiber in list(self._carriers):
            fiber.abandoned = True
            self._current = fiber
            while not fiber.over:
                self._carriers[fiber].enter()
            del self._carriers[fiber]
        self._current = None


class FiberLock:
    """A lock between blocking calls, as ``threading.Lock`` is between threads."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._held = False
        self._waiting: list[Resume] = []

    def __enter__(self) -> FiberLock:
        while self._held:
            self._fibers.block(self._waiting.append)
        self._held = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = False
        if self._waiting:
            self._waiting.pop(0)()
