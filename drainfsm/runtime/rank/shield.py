"""A rank's child processes: a signal to everybody passes them by, one of their parent does not.

A job's processes ignore the signals of a notice. But a DataLoader worker installs a handler for
SIGTERM of its own, and would die of it, and its rank with it; and ``Process.terminate`` would be
in vain where SIGTERM stays ignored. So in a child SIGTERM is blocked, and a thread looks at who
sent it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

_TERM = {signal.SIGTERM}
_on = False


def shield_children() -> None:
    """From here on, for children forked by this process and by theirs. Does nothing where SIGTERM
    is not ignored: then no agent has asked for it."""
    global _on
    if not _on and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        _on = True
        os.register_at_fork(after_in_child=_guard)


def shield_spawned_child() -> None:
    """The same for a child that ``multiprocessing`` starts afresh, by spawn or from a fork server.

    Called when the training script is imported there; does nothing anywhere else.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or _on or signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        shield_children()
        _guard()


def _guard() -> None:
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
    multiprocessing = sys.modules.get("multiprocessing.process")
    starter = None if multiprocessing is None else multiprocessing.parent_process()
    return None if starter is None else int(starter.pid)
