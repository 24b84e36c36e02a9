"""What ends a command that has started processes: it does not leave before they have ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
T = TypeVar("T")


def run_cleaning_up(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` that does the same: the first of these signals cancels the work, and
    ``KeyboardInterrupt`` is raised once that has ended."""
    import asyncio  # only here: it is slow to import

    async def run() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        for number in ENDINGS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(
                    number, lambda: None if task.cancelling() else task.cancel()
                )
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Inside, the first of these signals raises ``KeyboardInterrupt``, whichever it is, and no
    later one is heard: Ctrl-C pressed twice does not stop what cleans up. One that is ignored
    (``nohup``) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.getsignal(one) for one in ENDINGS}
    before = {one: handler for one, handler in before.items() if handler is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
