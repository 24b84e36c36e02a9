"""Signals in the processes of a job. The agent acts on a notice, so a rank ignores it.

A rank has a handler that does nothing, instead of SIG_IGN, so that programs which it executes get
the default back, and can be ended as usual. A child that is only forked gets it back here.
But workers of ``multiprocessing`` (a DataLoader's) must outlive a signal to the whole group, and
obey one from their parent: there SIGTERM is blocked, and a thread looks at who sent it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.process
import multiprocessing.util
import os
import signal
import threading
from collections.abc import Iterable, Mapping
from types import FrameType

from drainfsm.runtime.wire.environment import SIGNALS_VARIABLE, SOCKET_VARIABLE

log = logging.getLogger("drainfsm.rank")
_TERM = {signal.SIGTERM}
_passed: tuple[signal.Signals, ...] = ()
"""Signals that this process ignores; empty: it has not been asked to."""

_forking = threading.local()


def notice_signals(environ: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """Signals that the agent takes as a notice."""
    known = signal.Signals.__members__
    names = environ.get(SIGNALS_VARIABLE, "").split(",")
    return tuple(known[name] for name in names if name in known)


def pass_by(signals: Iterable[signal.Signals]) -> None:
    """From here on these signals do nothing to this process. A handler of its own for one of them
    is replaced, with a warning.

    Raises:
        ValueError: not called in the main thread, or a signal that cannot be heard.
    """
    global _passed
    first = not _passed
    _passed = tuple(signals)
    replaced = []
    for number in _passed:
        before = signal.signal(number, _nothing)
        signal.siginterrupt(number, False)  # noqa: FBT003 - no system call of the job's ends early by it
        if callable(before) and before not in (signal.default_int_handler, _nothing):
            replaced.append(number.name)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _passed)  # a launcher was started with them blocked
    if first:
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_give_back)
        multiprocessing.util.register_after_fork(_nothing, _guard_worker)
    if replaced:
        log.warning(
            "its handler for %s is replaced, since the agent acts on it", ", ".join(replaced)
        )


def pass_by_still() -> None:
    """The same signals again: the script, or a framework of its, may have set up handlers since."""
    with contextlib.suppress(ValueError):  # the steps are not done in the main thread
        if _passed:
            pass_by(_passed)


def shield_spawned_child() -> None:
    """For a child that ``multiprocessing`` starts afresh, by spawn or from a fork server.

    Called when the training script is imported there; does nothing anywhere else.
    """
    if SOCKET_VARIABLE not in os.environ or _passed:
        return
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        pass_by(notice_signals(os.environ))
        _guard_worker(_nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The agent acts on it."""


def _hold() -> None:
    """A signal that a forked child gets before it is set up waits until it is."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _passed)


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _give_back() -> None:
    """In a forked child: as if there were no agent. A worker is guarded a moment later."""
    for number in _passed:
        if signal.getsignal(number) is _nothing:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _passed)


def _guard_worker(_: object) -> None:
    """In a worker of ``multiprocessing``, before its work begins."""
    for number in _passed:
        signal.signal(number, _nothing)
    if signal.SIGTERM not in _passed:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(
        target=_obey, args=(os.getppid(),), name="drainfsm-shield", daemon=True
    ).start()


def _obey(parent: int) -> None:
    while True:
        sender = signal.sigwaitinfo(_TERM).si_pid
        if sender in (parent, _starter(), os.getpid()) or os.getppid() != parent:
            # In this thread alone it is not blocked: the process ends by it, or handles it.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM)
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)


def _starter() -> int | None:
    """The process whose ``Process.start`` this is; the fork server is only its parent."""
    starter = multiprocessing.process.parent_process()
    return None if starter is None else starter.pid
