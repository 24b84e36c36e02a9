"""What both kinds of simulated connections are to the loop of the process at one end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drainfsm_kit.simulator.process import Process


class End(asyncio.Transport):
    """One end of a connection: how bytes get to the other one is its subclass's."""

    def __init__(self, process: Process, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.process = process
        self.protocol = protocol
        self.closing = False
        self.lost = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """The reader takes what comes: there is no memory to protect."""

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def take(self, data: bytes) -> None:
        if not self.lost:
            self.protocol.data_received(data)

    def take_end(self) -> None:
        if not self.lost and not self.protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.protocol.connection_lost(error)
