"""Work beside the event loop's own: blocking calls on threads, and background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class OwnThreads(Protocol):
    """An event loop that runs blocking calls its own way: the simulator's, in virtual time."""

    def run_blocking(self, name: str, work: Callable[[], T]) -> asyncio.Future[T]: ...


def in_thread(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run ``work`` on a thread of its own. A thread that hangs never holds up the process: it is
    a daemon, and no executor waits for it at the end."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, OwnThreads):
        return loop.run_blocking(name, work)
    future: asyncio.Future[T] = loop.create_future()
    thread = threading.Thread(
        target=_run, args=(loop, future, work), name=f"drainfsm-{name}", daemon=True
    )
    thread.start()
    return future


def _run(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        _call(loop, _fail, future, error)
    else:
        _call(loop, _succeed, future, result)


def _call(loop: asyncio.AbstractEventLoop, settle: Callable[..., None], *given: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle, *given)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class Worker:
    """One thread that does its jobs in order: the journal's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        """Started with the first job."""

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if isinstance(loop, OwnThreads):
            return loop.run_blocking(self._name, work)
        if self._thread is None:
            name = f"drainfsm-{self._name}"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(lambda: _run(loop, future, work))
        return future

    def stop(self) -> None:
        """Takes no more jobs. A job that hangs is left behind."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class Tasks:
    """Background tasks of one owner: kept alive, cancelled together, never failing silently."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            trace = "".join(traceback.format_exception(error))
            self._warn(f"a bug, please report it: {trace}")

    async def cancel(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
