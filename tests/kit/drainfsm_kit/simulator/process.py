"""A simulated process: an event loop of its own that can be stopped, continued and killed."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from drainfsm_kit.simulator.fibers import Fibers
from drainfsm_kit.simulator.sockets import UnixServer
from drainfsm_kit.simulator.timeline import US_PER_S, Timeline

if TYPE_CHECKING:
    from drainfsm_kit.simulator.machine import Machine
    from drainfsm_kit.simulator.network import Network

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Task(asyncio.Task[Any]):
    """In a set of tasks its place is the same in every run: asyncio ends those of a group so."""

    def __init__(self, number: int, coro: Any, **given: Any) -> None:
        self._number = number
        super().__init__(coro, **given)

    def __hash__(self) -> int:
        return self._number


class Process(asyncio.BaseEventLoop):
    """Runs asyncio code on the world's time, network and threads.

    While it is stopped (SIGSTOP) nothing of it runs, but what it has sent is under way, and what
    is sent to it waits. When it is killed nothing of it runs any more, no ``finally`` either.
    """

    def __init__(
        self,
        name: str,
        machine: Machine,
        timeline: Timeline,
        network: Network,
        fibers: Fibers,
        *,
        unix_servers: dict[str, UnixServer],
    ) -> None:
        super().__init__()
        self.unix_servers = unix_servers
        self.door: object = None
        """Of an agent: what it sees of its ranks' processes."""

        self.name = name
        self.machine = machine
        self.stopped = False
        self.dead = False
        self.exit_code: int | None = None
        self.ended_us: int | None = None
        self.bugs: list[str] = []
        """What nobody handled."""

        self.on_end: Callable[[Process], None] = lambda process: None
        self.on_count: Callable[[], None] = lambda: None
        self._timeline = timeline
        self._network = network
        self._fibers = fibers
        self._parked: deque[asyncio.Handle] = deque()
        self._main: asyncio.Task[int] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._task_count = 0
        self.set_exception_handler(self._note_bug)

    # --- life -----------------------------------------------------------------------------------

    def start(self, main: Coroutine[Any, Any, int]) -> None:
        self._main = self.create_task(main)
        self._main.add_done_callback(self._returned)

    def _returned(self, main: asyncio.Task[int]) -> None:
        if main.cancelled():
            return
        if (error := main.exception()) is not None:
            self.bugs.append(f"{self.name} crashed: {error!r}")
        self._end(1 if error is not None else main.result())

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT: first what came meanwhile, then the timers that are overdue, as asyncio does."""
        self.stopped = False
        parked, self._parked = self._parked, deque()
        late = [handle for handle in parked if isinstance(handle, asyncio.TimerHandle)]
        for handle in [h for h in parked if not isinstance(h, asyncio.TimerHandle)] + late:
            self._timeline.soon(self, handle)

    def kill(self, exit_code: int = 137) -> None:
        """SIGKILL."""
        self._end(exit_code)

    def _end(self, exit_code: int) -> None:
        if self.dead:
            return
        self.dead = True
        self.exit_code = exit_code
        self.ended_us = self._timeline.now_us
        self._network.process_ended(self)
        self.on_count()
        self.on_end(self)

    def dispose(self) -> None:
        """After the simulation: let go of what never ended, without a sound."""
        self.dead = True
        self.set_exception_handler(lambda loop, context: None)
        for task in self._tasks:
            task.cancel()
        for _ in range(DISPOSE_STEPS_MAX):
            if not self._parked:
                break
            handle = self._parked.popleft()
            if not handle.cancelled() and not isinstance(handle, asyncio.TimerHandle):
                self._run(handle)
        self.close()

    def _note_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.bugs.append(f"{self.name}: {context.get('message')}: {context.get('exception')!r}")

    # --- asyncio --------------------------------------------------------------------------------

    def run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        if self.stopped or self.dead:
            self._parked.append(handle)
            return
        self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def time(self) -> float:
        return self._timeline.now_us / US_PER_S

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.dead:
            self._parked.append(handle)
        else:
            self._timeline.soon(self, handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self._timeline.timer(math.ceil(when * US_PER_S), self, handle)
        return handle

    def create_task(self, coro: Any, **given: Any) -> asyncio.Task[Any]:
        self._task_count += 1
        task = _Task(self._task_count, coro, loop=self, **given)
        self._tasks.append(task)
        if len(self._tasks) > TASKS_KEPT:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    # --- threads and network --------------------------------------------------------------------

    def run_blocking(self, name: str, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._fibers.start(self, name, work)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        return self.run_blocking("executor", partial(func, *args))

    async def create_server(self, protocol_factory: Any, *_: Any, **given: Any) -> Any:
        return self._network.listen(self, given["sock"], protocol_factory)

    async def create_unix_server(
        self, protocol_factory: Any, path: Any = None, **given: Any
    ) -> Any:
        server = UnixServer(self, protocol_factory)
        self.unix_servers[str(path)] = server
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **given: Any
    ) -> Any:
        return await self._network.connect(self, f"{host}:{port}", protocol_factory)


DISPOSE_STEPS_MAX = 100_000
TASKS_KEPT = 256
