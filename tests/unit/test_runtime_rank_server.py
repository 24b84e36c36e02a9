"""The agent's socket answers processes of its own user and of root, whatever else can reach it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from drainfsm.errors import ConfigError
from drainfsm.runtime.agent import rank_server
from drainfsm.runtime.agent.rank_server import RankServer
from drainfsm.runtime.rank.attach import attach_session
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.environment import SOCKET_VARIABLE
from drainfsm.runtime.wire.frames import encode_frame, peer_of

ASKED = m.TakeBack(source="operator", native_id="1", reason="")


async def answered(path: Path) -> bool:
    """Whether a caller gets an answer."""
    none = cast(Any, None)

    async def answer(_: m.FromCaller) -> m.NotifyAnswer:
        return m.NotifyAnswer()

    server = RankServer(none, start=none, call=answer, ends=none, warn=print)
    await server.listen(path)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(encode_frame(ASKED))
        data = await reader.read()
        writer.close()
        return bool(data)
    except ConnectionError:
        return False
    finally:
        await server.close()


def test_who_says_what_cannot_be_understood_is_told_why(tmp_path: Path) -> None:
    """A script that takes its rank from the environment as it is, and gives text."""
    none = cast(Any, None)

    async def attached() -> None:
        server = RankServer(none, start=none, call=none, ends=none, warn=print)
        await server.listen(tmp_path / "agent.sock")
        try:
            await asyncio.to_thread(
                attach_session,
                rank=cast(int, "0"),
                environ={SOCKET_VARIABLE: str(tmp_path / "agent.sock")},
            )
        finally:
            await server.close()

    with pytest.raises(ConfigError, match=r"got `str` - at `\$.rank`"):
        asyncio.run(attached())


@pytest.mark.parametrize(
    ("uid", "let_in"), [(os.getuid(), True), (0, True), (os.getuid() + 1, False)]
)
def test_the_kernel_is_asked_whose_process_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, let_in: bool
) -> None:
    def peer(connection: socket.socket) -> tuple[int, int]:
        assert peer_of(connection) == (os.getpid(), os.getuid())
        return os.getpid(), uid

    monkeypatch.setattr(rank_server, "peer_of", peer)
    assert asyncio.run(answered(tmp_path / "agent.sock")) is let_in
