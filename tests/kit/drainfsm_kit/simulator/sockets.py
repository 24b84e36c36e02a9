"""Simulated Unix sockets between an agent and the ranks of its node: asyncio's end, and the ranks'
blocking one. Nothing is lost on them; bytes are late, and wait for a reader that is stopped."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drainfsm_kit.simulator.fibers import Fibers, Resume
from drainfsm_kit.simulator.timeline import US_PER_S, Timeline
from drainfsm_kit.simulator.transport import End

if TYPE_CHECKING:
    from drainfsm_kit.simulator.process import Process

IPC_US = 120
"""One way."""

_PEER = struct.Struct("3i")
_LIMIT = struct.Struct("@ll")
Factory = Callable[[], asyncio.Protocol]


class AgentEnd(End):
    """Of an agent."""

    def __init__(
        self, process: Process, protocol: asyncio.Protocol, peer: RankSocket, timeline: Timeline
    ) -> None:
        super().__init__(process, protocol)
        self.message_count = 0
        self._peer = peer
        self._timeline = timeline

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def getsockopt(self, level: int, option: int, size_bytes: int) -> bytes:
        """``SO_PEERCRED``: who is at the other end."""
        return _PEER.pack(self._peer.pid, os.getuid(), os.getgid())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self.message_count += 1
            self._timeline.after(IPC_US, self._peer.receive, bytes(data))

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._timeline.after(IPC_US, self._peer.receive, b"")
            self.process.call_soon(self.lose, None)

    abort = close

    def receive(self, data: bytes) -> None:
        """``b""``: the other end is closed."""
        if data:
            self.process.call_soon(self.take, data)
        else:
            self.process.call_soon(self.take_end)


class UnixServer:
    """What ``loop.create_unix_server`` returns."""

    def __init__(self, process: Process, factory: Factory) -> None:
        self._process = process
        self._factory = factory
        self._open = True

    def close(self) -> None:
        self._open = False

    @property
    def answers(self) -> bool:
        return self._open and not self._process.dead

    def connect(self, peer: RankSocket, timeline: Timeline) -> AgentEnd:
        end = AgentEnd(self._process, self._factory(), peer, timeline)
        self._process.call_soon(end.protocol.connection_made, end)
        return end


class RankSocket:
    """The part of ``socket.socket`` that ranks use. Its calls block the thread that makes them."""

    def __init__(
        self, pid: int, find: Callable[[str], UnixServer | None], fibers: Fibers, timeline: Timeline
    ) -> None:
        self.pid = pid
        self.agent_end: AgentEnd | None = None
        """None: not connected yet."""

        self._closed = False

        self.message_count = 0
        self._find = find
        self._fibers = fibers
        self._timeline = timeline
        self._received = bytearray()
        self._ended = False
        self._limit_us: int | None = None
        self._waiting: list[Resume] = []

    def connect(self, path: str) -> None:
        server = self._find(path)
        if server is None or not server.answers:
            raise ConnectionRefusedError(111, "Connection refused")
        self.agent_end = server.connect(self, self._timeline)

    def settimeout(self, seconds: float | None) -> None:
        self._limit_us = None if seconds is None else round(seconds * US_PER_S)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """``SO_RCVTIMEO``."""
        seconds, more_us = _LIMIT.unpack(value)
        self._limit_us = seconds * US_PER_S + more_us

    def sendall(self, data: bytes) -> None:
        if self.agent_end is None or self._closed or self._ended:
            raise BrokenPipeError(32, "Broken pipe")
        self.message_count += 1
        self._timeline.after(IPC_US, self.agent_end.receive, bytes(data))

    def recv(self, size_bytes: int) -> bytes:
        """Raises: BlockingIOError: nothing came in the time that was set."""
        if not self._received and not self._ended:
            self._wait()
        if not self._received and not self._ended:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        data = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return data

    def _wait(self) -> None:
        def arrange(resume: Resume) -> None:
            over: list[bool] = []

            def once() -> None:
                if not over:
                    over.append(True)
                    resume()

            self._waiting.append(once)
            if self._limit_us is not None:
                self._timeline.after(self._limit_us, once)

        self._fibers.block(arrange)
        self._waiting.clear()

    def receive(self, data: bytes) -> None:
        """``b""``: the agent has closed its end."""
        self._received += data
        self._ended = self._ended or not data
        for resume in self._waiting:
            resume()

    def shutdown(self, how: int) -> None:
        self.close()
        self.receive(b"")

    def close(self) -> None:
        """Also what the kernel does when the process ends."""
        if self.agent_end is not None and not self._closed:
            self._closed = True
            self._timeline.after(IPC_US, self.agent_end.receive, b"")
