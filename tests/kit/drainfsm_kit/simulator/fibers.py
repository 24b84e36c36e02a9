"""Blocking code in virtual time: each call has a stack of its own, and exactly one of all runs.

It gives way where it would wait for the world, and goes on when the world has answered. So calls
interleave at every single request to the store or the disk, in an order that the seed gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from greenlet import greenlet  # type: ignore[import-untyped]

T = TypeVar("T")
Resume = Callable[[], None]
Arrange = Callable[[Resume], None]


class Abandoned(BaseException):
    """Raised inside a blocking call whose process has died, so that its thread ends."""


class Owner(Protocol):
    """The process that made the call."""

    @property
    def dead(self) -> bool: ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...
    def create_future(self) -> asyncio.Future[Any]: ...


class Fiber:
    def __init__(self, owner: Owner, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.owner = owner
        self.future = future
        self.arrange: Arrange | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.abandoned = False
        self._work = work
        self._stack = greenlet(self._run)
        self._world: greenlet | None = None

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    @property
    def over(self) -> bool:
        return bool(self._stack.dead)

    def enter(self) -> None:
        """Called by the simulation: run until it gives way or is over."""
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        self._stack.parent = greenlet.getcurrent()
        self._world = self._stack.parent
        try:
            self._stack.switch()
        finally:
            asyncio._set_running_loop(loop)

    def give_way(self) -> None:
        """Called inside of it."""
        assert self._world is not None
        self._world.switch()


class Fibers:
    """All blocking calls of one simulation."""

    def __init__(self) -> None:
        self._waiting: dict[Fiber, None] = {}
        self._current: Fiber | None = None

    @property
    def inside(self) -> bool:
        """What runs now may block."""
        return self._current is not None

    @property
    def owner(self) -> Owner | None:
        """Of the call that runs now; None: no blocking call does."""
        return None if self._current is None else self._current.owner

    def start(self, owner: Owner, name: str, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = owner.create_future()
        owner.call_soon(self._step, Fiber(owner, work, future))
        return future

    def _step(self, fiber: Fiber) -> None:
        self._current = fiber
        fiber.enter()
        self._current = None
        if fiber.over:
            self._waiting.pop(fiber, None)
            self._settle(fiber)
            return
        self._waiting[fiber] = None
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
        assert fiber is not None, "blocking code outside of a simulated thread"
        fiber.arrange = arrange
        fiber.give_way()
        if fiber.abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """After the simulation: end what still waits."""
        for fiber in list(self._waiting):
            fiber.abandoned = True
            self._current = fiber
            while not fiber.over:
                fiber.enter()
        self._waiting.clear()
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
