"""The client side of ``drainfsm notify``: hands a notice to a running agent on this machine."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path

from drainfsm.core.notice import Notice
from drainfsm.errors import AgentUnreachableError, NoticeRejectedError, ProtocolError
from drainfsm.runtime import paths
from drainfsm.runtime.agent.notices import ANSWER_S
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import Codec, encode_frame, peer_of, receive

SLACK_S = 5.0


def give_notice(state_dir: Path, *, job: str, notice: Notice, node_rank: int | None = None) -> str:
    """Returns once the notice is on record: one line on where the drain stands. The deadline and
    ``received_unix_ms`` (now) are by this machine's wall clock, of now.

    ``node_rank``: the agent to call; None: the first that answers.

    Raises:
        AgentUnreachableError: no agent of the job runs on this machine, or it does not answer.
        NoticeRejectedError: the notice cannot be acted on; the message says why.
    """
    message = m.GiveNotice(notice=notice, stated_unix_ms=notice.received_unix_ms)
    return _call(state_dir, job, message, node_rank)


def withdraw_notice(
    state_dir: Path,
    *,
    job: str,
    source: str,
    native_id: str,
    reason: str = "",
    node_rank: int | None = None,
) -> str:
    """Take a SOFT notice back. Raises as ``give_notice``."""
    message = m.TakeBack(source=source, native_id=native_id, reason=reason)
    return _call(state_dir, job, message, node_rank)


def agents_here(state_dir: Path, *, job: str, node_rank: int | None = None) -> list[int]:
    """A pidfd of every agent of the job on this machine, for ``wait_until_gone``.

    Raises: AgentUnreachableError: it answers, and its processes cannot be seen from here.
    """
    found = []
    for link in _links(state_dir, job, node_rank):
        connection = _connect(link)
        if connection is None:
            continue
        with connection:
            pid, _ = peer_of(connection)
        try:
            found.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue  # it ended just now
        except OSError as error:
            raise AgentUnreachableError(
                f"the end of job {job!r}'s agent cannot be waited for from here, in another pid "
                "namespace: wait in the agent's own container"
            ) from error
    return found


def wait_until_gone(agents: Sequence[int]) -> None:
    """Returns once every process of these pidfds has ended."""
    for pidfd in agents:
        select.select([pidfd], [], [])
        os.close(pidfd)


def _links(state_dir: Path, job: str, node_rank: int | None) -> list[Path]:
    links = paths.control_links(state_dir, job=job)
    if node_rank is None:
        return links
    return [link for link in links if link.stem.endswith(f"-{node_rank}")]


def _call(state_dir: Path, job: str, message: m.FromCaller, node_rank: int | None) -> str:
    for link in _links(state_dir, job, node_rank):
        connection = _connect(link)
        if connection is not None:
            with connection:
                return _ask(connection, message, job)
    which = "" if node_rank is None else f" with node rank {node_rank}"
    raise AgentUnreachableError(
        f"no agent of job {job!r}{which} with state directory {state_dir} runs on this machine: "
        "run the command on a node of the job, as the same user or root, with the same --state-dir"
    )


def _connect(link: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_S + SLACK_S)
    try:
        connection.connect(str(link))
    except OSError:
        connection.close()
        return None
    return connection


def _ask(connection: socket.socket, message: m.FromCaller, job: str) -> str:
    try:
        connection.sendall(encode_frame(message))
        answer = receive(connection, Codec[m.NotifyAnswer](m.NotifyAnswer))
    except (OSError, ProtocolError) as error:
        raise AgentUnreachableError(
            f"the agent of job {job!r} ended without an answer ({error})"
        ) from error
    if answer.error:
        raise NoticeRejectedError(answer.error)
    return answer.detail
