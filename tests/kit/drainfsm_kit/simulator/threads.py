"""The threads of simulated ranks: what ``threading``, ``socket`` and ``os`` are to their code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from drainfsm.runtime.agent import rank_server
from drainfsm.runtime.rank import attach, inbox, orders, progress, session
from drainfsm_kit.simulator.fibers import Abandoned, Fibers, Resume
from drainfsm_kit.simulator.sockets import RankSocket, UnixServer
from drainfsm_kit.simulator.timeline import US_PER_S, Timeline

if TYPE_CHECKING:
    from drainfsm_kit.simulator.rank import Rank

SILENT = logging.Logger("simulated", logging.CRITICAL)


class Outcome:
    """The future of a thread: an error in it that nobody handles is a bug."""

    def __init__(self, rank: Rank, ended: Callable[[], None]) -> None:
        self._rank = rank
        self._ended = ended

    def done(self) -> bool:
        return False

    def set_result(self, result: object) -> None:
        self._ended()

    def set_exception(self, error: BaseException) -> None:
        if not isinstance(error, Abandoned):
            self._rank.around.wrong.append(f"rank {self._rank.number} crashed: {error!r}")
        self._ended()


class RankThread:
    """``threading.Thread`` in a rank, and the owner of the stack that it runs on."""

    def __init__(
        self,
        fibers: Fibers,
        rank: Rank,
        target: Callable[[], None],
        *,
        is_main: bool = False,
    ) -> None:
        self.rank = rank
        self.is_main = is_main
        self._fibers = fibers
        self._target = target
        self._over = False
        self._joining: list[Resume] = []

    @property
    def dead(self) -> bool:
        return not self.rank.alive

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.rank.after(0, self._go_on, callback, args)

    def _go_on(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not (self.is_main and self.rank.hung):
            callback(*args)

    def create_future(self) -> asyncio.Future[Any]:
        return Outcome(self.rank, self._end)  # type: ignore[return-value]

    def start(self) -> None:
        self._fibers.start(self, "rank", self._target)

    def join(self, timeout_s: float) -> None:
        if self._over:
            return

        def arrange(resume: Resume) -> None:
            self._joining.append(resume)
            self.rank.after(round(timeout_s * US_PER_S), self._release)

        self._fibers.block(arrange)

    def _end(self) -> None:
        self._over = True
        self._release()

    def _release(self) -> None:
        joining, self._joining = self._joining, []
        for resume in joining:
            resume()


class Condition:
    """``threading.Condition`` where nothing else runs until somebody waits."""

    def __init__(self, fibers: Fibers) -> None:
        self._fibers = fibers
        self._waiting: list[Resume] = []

    def __enter__(self) -> Condition:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def wait(self) -> None:
        self._fibers.block(self._waiting.append)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()


class RankMachinery:
    """While it is installed, ranks' code has simulated threads, sockets and time, and agents see
    simulated processes end."""

    def __init__(self, fibers: Fibers, timeline: Timeline) -> None:
        self.servers: dict[str, UnixServer] = {}
        """By path."""

        self._fibers = fibers
        self._timeline = timeline
        self._before: list[tuple[Any, str, Any]] = []
        threads = SimpleNamespace(
            Condition=lambda: Condition(fibers),
            Thread=self._thread,
            current_thread=lambda: fibers.owner,
        )
        self._set(orders, "threading", threads)
        self._set(inbox, "threading", threads)
        self._set(session, "os", SimpleNamespace(_exit=self._exit))
        self._set(session, "say_last", lambda *given: None)
        self._set(progress, "monotonic_ms", lambda: timeline.now_ms)
        self._set(attach, "socket", SimpleNamespace(AF_UNIX=1, socket=self._socket))
        self._set(attach, "log", SILENT)
        self._set(attach, "print_unheard", lambda: None)
        self._set(attach, "pass_by", lambda signals: [])
        self._set(rank_server, "watch_exit", _watch_exit)

    def _set(self, module: Any, name: str, value: Any) -> None:
        self._before.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def remove(self) -> None:
        for module, name, value in reversed(self._before):
            setattr(module, name, value)

    @property
    def _here(self) -> RankThread:
        """The thread that runs now."""
        owner = self._fibers.owner
        assert isinstance(owner, RankThread)
        return owner

    def _thread(self, *, target: Callable[[], None], **named: object) -> RankThread:
        return RankThread(self._fibers, self._here.rank, target)

    def _socket(self, family: int) -> RankSocket:
        rank = self._here.rank
        rank.socket = RankSocket(rank.pid, self.servers.get, self._fibers, self._timeline)
        return rank.socket

    def _exit(self, code: int) -> NoReturn:
        self._here.rank.end(code)
        raise Abandoned


def _watch_exit(pid: int, ended: Callable[[int | None], None]) -> bool:
    loop: Any = asyncio.get_running_loop()
    watched: bool = loop.door.watch(pid, ended)
    return watched
