"""What ends a command that has started processes: it does not leave before they have ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
