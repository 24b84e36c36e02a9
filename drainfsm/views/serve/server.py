"""The HTTP server under the dashboard: it ends together with its viewers, and nobody holds one of
its connections for nothing."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from drainfsm.views.serve.hub import Hub

GRACEFUL_S = 2.0
"""Until connections are cut off that do not take the end of their answers."""

CANCEL_S = 5
REQUEST_S = 20.0
"""For a whole request to come: after the connection, and after the answer before."""

STUCK_S = 60.0
"""For a viewer to take some of what waits for it."""

TICKS_A_SECOND = 10
TOLD_AGAIN_S = 60.0
NO_ROOM = (errno.EMFILE, errno.ENFILE)


class PatientServer(uvicorn.Server):
    """With a limit to its patience."""

    def __init__(self, app: ASGIApp, hub: Hub, *, say: Callable[[str], None]) -> None:
        """``say``: is told what a person should see."""
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=CANCEL_S,
            )
        )
        self._hub = hub
        self._say = say
        self._said_s = -TOLD_AGAIN_S
        self._held: dict[object, tuple[object, float]] = {}
        """By connection: what it waits for, and since when."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._failed)
        await super().serve(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_A_SECOND == 0:
            self._hang_up(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.end()
        cut = asyncio.get_running_loop().call_later(GRACEFUL_S, self._cut_off)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            _abort(connection)

    def _hang_up(self, now_s: float) -> None:
        """On whoever has not asked for anything, or has taken nothing, for too long."""
        held: dict[object, tuple[object, float]] = {}
        for connection in list(self.server_state.connections):
            wait = _wait_of(connection)
            if wait is None:
                continue
            limit_s, what = wait
            before, since_s = self._held.get(connection, (None, now_s))
            since_s = since_s if before == what else now_s
            if now_s - since_s > limit_s:
                _abort(connection)
            else:
                held[connection] = (what, since_s)
        self._held = held

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What no call raises. Without room for connections there would be a report of it for each
        that is not accepted."""
        error = context.get("exception")
        if self.should_exit and isinstance(error, ValueError):
            return  # asyncio would accept again, after a time, by what is closed by now
        if not isinstance(error, OSError) or error.errno not in NO_ROOM:
            loop.default_exception_handler(context)
            return
        now_s = time.monotonic()
        if now_s - self._said_s >= TOLD_AGAIN_S:
            self._said_s = now_s
            self._say("no room for more connections: raise the limit of open files (`ulimit -n`)")


def _wait_of(connection: Any) -> tuple[float, object] | None:
    """What the connection waits for, and for how long it may; None: for nothing of its client."""
    cycle = connection.cycle
    if cycle is None or cycle.response_complete:
        return REQUEST_S, cycle
    if connection.flow.write_paused:
        return STUCK_S, (cycle, connection.transport.get_write_buffer_size())
    return None


def _abort(connection: Any) -> None:
    connection.transport.abort()
