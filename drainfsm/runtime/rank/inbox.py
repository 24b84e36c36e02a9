"""The rank's reader thread: it works while the main thread computes, or is stuck in C."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Protocol

from drainfsm.errors import ProtocolError
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import Codec, FrameBuffer

SAMPLE_MS = 250
"""How often the step counter is read, at no measurable cost to the main thread."""

READ_BYTES = 1 << 16
JOIN_S = 1.0


class Reactions(Protocol):
    def on_order(self, order: m.ToRank) -> None: ...
    def sample(self) -> None: ...
    def on_agent_gone(self, why: str) -> None: ...


class Inbox:
    """Hands every message of the agent to the session, and notices when the agent is gone."""

    def __init__(self, connection: socket.socket, reactions: Reactions) -> None:
        self._connection = connection
        self._reactions = reactions
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="drainfsm-inbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The end of the stream is expected from now on."""
        self._stopped = True
        with contextlib.suppress(OSError):  # the agent was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        # A time limit of the kernel's: polling first would ask for the interpreter lock twice.
        limit = struct.pack("@ll", 0, SAMPLE_MS * 1_000)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        frames: FrameBuffer[m.ToRank] = FrameBuffer(Codec(m.ToRank))
        why = "the agent is gone"
        try:
            self._receive(frames)
        except Exception as error:  # without this thread the rank would train on alone
            why = f"its orders can no longer be taken: {error!r}"
        finally:
            with contextlib.suppress(OSError):  # the script may have closed all that was open
                self._connection.close()
        if not self._stopped:
            self._reactions.on_agent_gone(why)

    def _receive(self, frames: FrameBuffer[m.ToRank]) -> None:
        """Until the connection ends."""
        while True:
            try:
                data = self._connection.recv(READ_BYTES)
                for order in frames.feed(data):
                    self._reactions.on_order(order)
            except BlockingIOError:
                self._reactions.sample()
                continue
            except (OSError, ProtocolError):
                return
            if not data:
                return
