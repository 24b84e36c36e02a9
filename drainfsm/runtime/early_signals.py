"""Signals that come before the agent can act on them: its first second is spent on imports.

This module imports nothing of drainfsm, and runs first.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from types import FrameType

NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")

_recorded: list[tuple[str, int]] = []
_before: dict[str, signal.Handlers] = {}


def record() -> None:
    """From here on a signal is only remembered. One that is ignored stays so (``nohup``)."""
    for name in NAMES:
        number = signal.Signals[name]
        if signal.getsignal(number) is not signal.SIG_IGN:
            _before[name] = signal.signal(number, _remember)  # type: ignore[assignment]


def _remember(number: int, frame: FrameType | None) -> None:
    _recorded.append((signal.Signals(number).name, time.time_ns() // 1_000_000))


def taken_over(names: Iterable[str]) -> list[tuple[str, int]]:
    """The caller has handlers for these names now. Returns those that came before, and when (UTC
    milliseconds). Other signals get their former handlers back, and those that came are raised
    again."""
    wanted = set(names)
    for name, before in _before.items():
        if name not in wanted:
            signal.signal(signal.Signals[name], before)
    _before.clear()
    came = list(_recorded)
    _recorded.clear()
    for name, _ in came:
        if name not in wanted:
            os.kill(os.getpid(), signal.Signals[name])
    return [one for one in came if one[0] in wanted]
