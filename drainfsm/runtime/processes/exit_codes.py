"""How a rank ended, although it is its launcher's child and not ours.

A launcher flattens exit codes (torchrun makes 1 of every failure). A pidfd tells when the process
ends. Its status is in /proc while it is a zombie, and in the pidfd once its parent has waited
for it (Linux 6.15; on older kernels a parent that waits faster than we read hides it).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
from collections.abc import Callable

from drainfsm.runtime.processes.proc import process

_INFO = struct.Struct("=QQ11Ii")
"""``struct pidfd_info``, first version: mask, cgroup id, eleven ids, exit code."""

_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11

SIGNALLED = 128
"""A shell's exit code of a process that a signal ended, less the signal's number."""

Ended = Callable[[int | None], None]


def watch_exit(pid: int, ended: Ended) -> bool:
    """Calls ``ended`` once with the exit code as a shell would see it (None: not known), on the
    running loop. False: it never will, as the process cannot be seen (another pid namespace, or
    gone already): then the end of its connection has to do."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return False
    loop = asyncio.get_running_loop()

    def on_exit() -> None:
        status = exit_status(pid, pidfd)
        loop.remove_reader(pidfd)
        os.close(pidfd)
        ended(None if status is None else shell_code(os.waitstatus_to_exitcode(status)))

    loop.add_reader(pidfd, on_exit)
    return True


def exit_status(pid: int, pidfd: int) -> int | None:
    """The wait status of a process that has ended; None: not known any more."""
    found = process(pid)
    if found is not None and found.state == "Z":
        return found.exit_status
    info = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def shell_code(code: int) -> int:
    """``code`` as Python gives it: negative for a signal."""
    return SIGNALLED - code if code < 0 else code


def describe_exit(code: int | None) -> str:
    """For a message about a process that ended."""
    if code is None:
        return "ended"
    if code > SIGNALLED:
        try:
            return f"was ended by {signal.Signals(code - SIGNALLED).name}"
        except ValueError:
            pass
    return f"ended with exit code {code}"
