"""Processes of a job, found in /proc: launchers put their workers into sessions of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    state: str
    """One letter; ``Z``: ended, and not yet waited for."""

    parent: int
    session: int
    exit_status: int
    """As ``wait`` would give it; means something only for a zombie (proc_pid_stat(5))."""


def process(pid: int) -> Process | None:
    """None: there is no such process (any more)."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:  # there are thousands of them
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # PermissionError: of another user, under ``hidepid``
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        exit_status=int(fields[49]),
    )


def name_of(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process"


def catches(pid: int, number: int) -> bool:
    """The process has a handler of its own for the signal, and hears it."""
    return _has(pid, "SigCgt:", number) and not _has(pid, "SigBlk:", number)


def hears(pid: int, number: int) -> bool:
    """The process neither ignores the signal nor blocks it."""
    return not _has(pid, "SigIgn:", number) and not _has(pid, "SigBlk:", number)


def _has(pid: int, mask: str, number: int) -> bool:
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    found = next((line for line in status.splitlines() if line.startswith(mask)), f"{mask} 0")
    return bool(int(found.split()[1], 16) >> (number - 1) & 1)


def processes() -> list[Process]:
    found = (process(int(name)) for name in os.listdir(PROC) if name.isdecimal())
    return [one for one in found if one is not None]


def job_processes(agent: int, *, others: Container[int]) -> list[Process]:
    """Everything that the agent's command has started, also what has lost its parent.

    The agent is a child subreaper, so orphans become its own children; it starts the command in a
    new session, so a child in the agent's session (a tool that an adapter calls) is not part of it.
    ``others``: children in sessions of their own that are not the job's.
    """
    children: dict[int, list[Process]] = {}
    session = os.getsid(agent)
    for one in processes():
        children.setdefault(one.parent, []).append(one)
    found = []
    pending = [
        one for one in children.get(agent, []) if one.session != session and one.pid not in others
    ]
    while pending:
        one = pending.pop()
        found.append(one)
        pending += children.get(one.pid, [])
    return found


def reap(found: list[Process], *, but: int) -> None:
    """Wait for orphans that have ended. ``but``: the command itself, which has its own waiter."""
    for one in found:
        if one.state == "Z" and one.parent == os.getpid() and one.pid != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)


def a_child_has_ended() -> bool:
    """Some child of this process, adopted ones included, waits to be waited for. It is left so."""
    with contextlib.suppress(ChildProcessError):  # there is no child at all
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False
