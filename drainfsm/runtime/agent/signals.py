"""Signals as a notice. The handler writes one byte to the loop's wake-up descriptor, no more."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from drainfsm.core.notice import SIGNAL_SOURCE, Cause, Notice, NoticeClass
from drainfsm.runtime import early_signals
from drainfsm.runtime.clock import Clock


def notice_of(name: str, *, now_unix_ms: int) -> Notice:
    """A bare signal says neither when nor why: the configured grace counts, the cause is unknown.

    The signal's name is the notice's identity, so the same one again, from whatever node, is the
    same notice.
    """
    return Notice(
        source=SIGNAL_SOURCE,
        native_id=name,
        cause=Cause.UNKNOWN,
        notice_class=NoticeClass.HARD,
        deadline_unix_ms=None,
        received_unix_ms=now_unix_ms,
    )


def _unwanted(name: str) -> bool:
    """The job is meant to outlive its terminal: it was started that way (``nohup``)."""
    return name == "SIGHUP" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@contextmanager
def hear_signals(
    names: Sequence[str], clock: Clock, sink: Callable[[Notice], None]
) -> Iterator[None]:
    """While inside, these signals are notices. asyncio's handlers are ``signal.set_wakeup_fd``."""
    loop = asyncio.get_running_loop()
    numbers = [signal.Signals[name] for name in dict.fromkeys(names) if not _unwanted(name)]

    def heard(name: str) -> None:
        sink(notice_of(name, now_unix_ms=clock.now_unix_ms()))

    for number in numbers:
        loop.add_signal_handler(number, heard, number.name)
    for name, at_unix_ms in early_signals.taken_over(number.name for number in numbers):
        sink(notice_of(name, now_unix_ms=at_unix_ms))
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # the process is about to end by itself
