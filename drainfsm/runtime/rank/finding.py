"""Where this rank's agent is, also where the launcher has not passed its variables on."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from drainfsm.runtime.config import RANK_VARIABLES, SIGNALS
from drainfsm.runtime.paths import sockets_of
from drainfsm.runtime.wire.environment import SIGNALS_VARIABLE, SOCKET_VARIABLE
from drainfsm.runtime.wire.frames import peer_of

log = logging.getLogger("drainfsm.rank")
PROC = Path("/proc")


def with_agent(environ: Mapping[str, str]) -> Mapping[str, str]:
    """``environ`` with the agent's variables. Where there are none (``env -i``, ``sudo``), they are
    those of the nearest process above this one that has them, or is the agent. An empty
    ``DRAINFSM_SOCKET`` says that none is wanted. Children of this process inherit what was found.
    """
    if SOCKET_VARIABLE in environ:
        return environ
    for pid in _above(os.getpid()):
        theirs = _environ_of(pid)
        if theirs.get(SOCKET_VARIABLE) == "":
            return environ
        if path := theirs.get(SOCKET_VARIABLE) or _own_socket(pid, theirs):
            found = {name: theirs[name] for name in RANK_VARIABLES & theirs.keys()}
            found = {SIGNALS_VARIABLE: ",".join(SIGNALS), **found, SOCKET_VARIABLE: path}
            log.warning(
                "the launcher has not passed %s on (`env -i`, `sudo`?): the agent was found by "
                "process %s above this one",
                SOCKET_VARIABLE,
                pid,
            )
            if environ is os.environ:
                os.environ.update(found)
            return {**environ, **found}
    return environ


def _above(pid: int) -> Iterator[int]:
    """Its parent, and so on, as far as they can be seen from here."""
    while pid > 1:
        try:
            stat = (PROC / str(pid) / "stat").read_bytes()
        except OSError:
            return
        pid = int(stat.rpartition(b")")[2].split()[1])
        if pid:
            yield pid


def _own_socket(pid: int, environ: Mapping[str, str]) -> str:
    """Of the agent that this process is. Its id alone would not do: another container that shares
    the folder of sockets has processes of the same ids, and so had agents that were killed."""
    return next((str(path) for path in sockets_of(pid, environ) if _listener(path) == pid), "")


def _listener(path: Path) -> int | None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
            return peer_of(probe)[0]
        except OSError:
            return None


def _environ_of(pid: int) -> dict[str, str]:
    """As it was started; empty: another user's."""
    try:
        text = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.partition(b"=") for part in text.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}
