"""``drainfsm.attach()``: finds the agent by its environment variable, and shakes hands."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from drainfsm.core.orders import CheckpointSettings
from drainfsm.errors import AgentUnreachableError, ConfigError, ProtocolError
from drainfsm.runtime.output import print_unheard
from drainfsm.runtime.paths import moved
from drainfsm.runtime.rank.finding import with_agent
from drainfsm.runtime.rank.placement import Placement, placement_of
from drainfsm.runtime.rank.session import RankSession
from drainfsm.runtime.rank.shield import notice_signals, pass_by
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.environment import SOCKET_VARIABLE
from drainfsm.runtime.wire.frames import Codec, encode_frame, receive

log = logging.getLogger("drainfsm.rank")

HANDSHAKE_S = 60.0
"""The agent is on the same machine and answers at once, unless ranks were started again: then the
coordinator asks the store first what to start from (``runtime/coordinator/starts.py``)."""


def attach_session(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
    incarnation: str = "",
    environ: Mapping[str, str] = os.environ,
) -> RankSession:
    """The session of this rank. What is not given comes from its launcher's variables.
    ``incarnation``: the same on ranks that were started together, and another one after each
    restart.

    Raises:
        AgentUnreachableError: there should be an agent, but it does not answer.
        ConfigError: the agent cannot take this rank; the message says why.
    """
    print_unheard()
    environ = with_agent(environ)
    path = environ.get(SOCKET_VARIABLE, "")
    placed = placement_of(environ)
    if not path:
        return RankSession(_detached(placed), None)
    attach = m.Attach(
        rank=placed.rank if rank is None else rank,
        world_size=placed.world_size if world_size is None else world_size,
        local_world_size=placed.local_world_size if local_world_size is None else local_world_size,
        pid=os.getpid(),
        incarnation=incarnation or environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
    connection = _connect(path)
    try:
        connection.sendall(encode_frame(attach))
        answer = receive(connection, Codec[m.ToRank](m.ToRank))
    except (OSError, ProtocolError) as error:
        connection.close()
        raise AgentUnreachableError(f"the agent at {path} does not answer: {error}") from error
    if not isinstance(answer, m.Attached):
        connection.close()
        reason = answer.reason if isinstance(answer, m.Refused) else f"it sent {answer!r}"
        raise ConfigError(f"the agent refused this rank: {reason}")
    connection.settimeout(None)
    _pass_signals_by(answer.rank, environ)
    return RankSession(answer, connection)


def _pass_signals_by(rank: int, environ: Mapping[str, str]) -> None:
    """A notice's signal to the whole process group ends no rank, whatever the launcher does."""
    signals = notice_signals(environ)
    names = ", ".join(number.name for number in signals)
    try:
        pass_by(signals)
    except ValueError as error:
        log.warning("rank %s: %s end it: call attach() in the main thread (%s)", rank, names, error)
        return
    if rank == 0:
        log.warning("ranks ignore %s from here on: the agent acts on them", names)


def _connect(path: str) -> socket.socket:
    try:
        return _connected(path)
    except OSError as error:
        for place in moved(Path(path)):
            with contextlib.suppress(OSError):
                return _connected(str(place))
        if isinstance(error, PermissionError):
            raise AgentUnreachableError(
                f"the agent's socket {path} is another user's: run the command as the user of "
                f"`drainfsm run` (here it is uid {os.getuid()})"
            ) from error
        raise AgentUnreachableError(
            f"no agent answers at {path} ({error.strerror or error}): it has ended, or runs on "
            "another machine (on several, each has a `drainfsm run` with the launcher inside), or "
            f"{SOCKET_VARIABLE} is another job's; set it to nothing to train without one"
        ) from error


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(HANDSHAKE_S)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _detached(placed: Placement) -> m.Attached:
    rank = placed.rank or 0
    if rank == 0:
        log.warning("no agent (not under `drainfsm run`): no drains, no saves")
    return m.Attached(
        rank=rank,
        world_size=placed.world_size or 1,
        job_id="",
        epoch=0,
        store_url="",
        settings=CheckpointSettings(),
        restore=None,
    )
