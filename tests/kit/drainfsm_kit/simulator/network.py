"""Simulated TCP between machines: bytes in order, late, never, or until the connection breaks.

What TCP cannot do is not simulated: no byte is lost, doubled or swapped inside a connection.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drainfsm.runtime.wire.frames import HEADER
from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.timeline import US_PER_MS, US_PER_S, Timeline
from drainfsm_kit.simulator.transport import End

if TYPE_CHECKING:
    from drainfsm_kit.simulator.machine import Machine
    from drainfsm_kit.simulator.process import Process

LATENCY_US = (150, 900)
RETRANSMIT_US = (200_000, 1_000_000)
"""After a silence: TCP sends again only now and then."""

SYN_RETRY_US = US_PER_S
NO_MESSAGE = 0xC1
"""With this no msgpack begins."""

Factory = Callable[[], asyncio.Protocol]


class Transport(End):
    """One end of a connection."""

    def __init__(
        self,
        network: Network,
        process: Process,
        protocol: asyncio.Protocol,
        chance: random.Random,
    ) -> None:
        super().__init__(process, protocol)
        self.network = network
        self.chance = chance
        self.peer: Transport = self
        self.arrives_us = 0
        """When the last byte under way from here arrives."""

        self.held: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """Sent into silence."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer.process.name if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self.network.count(len(data))
            sent = self.network.garbled(self, bytes(data))
            self.network.send(self, self.peer.receive, sent)

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.network.send(self, self.peer.receive_end)
            self.process.call_soon(self.lose, None)

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            self.network.send(self, self.peer.receive_reset)
            self.process.call_soon(self.lose, None)

    def receive(self, data: bytes) -> None:
        if self.closing or self.process.dead:
            self.network.send(self, self.peer.receive_reset)
        else:
            self.process.call_soon(self.take, data)

    def receive_end(self) -> None:
        if not self.closing:
            self.process.call_soon(self.take_end)

    def receive_reset(self) -> None:
        if not self.lost:
            self.closing = True
            self.process.call_soon(self.lose, ConnectionResetError("the connection was reset"))

    def lose(self, error: Exception | None) -> None:
        self.network.forget(self)
        super().lose(error)


class Server:
    """What ``loop.create_server`` returns."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self.sockets = ()

    def close(self) -> None:
        self._network.listeners.pop(self._address, None)

    def is_serving(self) -> bool:
        return self._address in self._network.listeners


class Network:
    def __init__(self, timeline: Timeline, chance: Chance, tally: Tally) -> None:
        self.listeners: dict[str, tuple[Process, Factory]] = {}
        self.message_count = 0
        self.byte_count = 0
        self.delay_us: dict[str, int] = {}
        """By machine: what every segment from or to it takes longer."""

        self._timeline = timeline
        self._chance = chance
        self._connected: Counter[str] = Counter()
        self._tally = tally
        self._ends: dict[Process, dict[Transport, None]] = {}
        self._garbles: Counter[str] = Counter()
        self._silent: dict[tuple[str, str], int] = {}

    def count(self, byte_count: int) -> None:
        self.message_count += 1
        self.byte_count += byte_count

    # --- connections ----------------------------------------------------------------------------

    def listen(self, process: Process, address: str, factory: Factory) -> Server:
        if address in self.listeners:
            raise OSError(98, "Address already in use")
        self.listeners[address] = (process, factory)
        return Server(self, address)

    async def connect(
        self, process: Process, address: str, factory: Factory
    ) -> tuple[Transport, asyncio.Protocol]:
        self._connected[process.name] += 1
        name = f"connection/{process.name}/{self._connected[process.name]}"
        chance = self._chance.stream(name)
        while True:
            await asyncio.sleep(chance.randint(*LATENCY_US) / US_PER_S)
            listener = self.listeners.get(address)
            if listener is None or listener[0].dead:
                raise ConnectionRefusedError(111, "Connection refused")
            if self.reaches(process.machine, listener[0].machine):
                break
            self._tally.hit("silence")
            await asyncio.sleep(SYN_RETRY_US / US_PER_S)
        server, server_factory = listener
        here = Transport(self, process, factory(), chance)
        there = Transport(self, server, server_factory(), self._chance.stream(f"{name}/back"))
        here.peer, there.peer = there, here
        for end in (here, there):
            self._ends.setdefault(end.process, {})[end] = None
        server.call_soon(there.protocol.connection_made, there)
        here.protocol.connection_made(here)
        return here, here.protocol

    def forget(self, transport: Transport) -> None:
        self._ends.get(transport.process, {}).pop(transport, None)

    def process_ended(self, process: Process) -> None:
        """The kernel closes what was open; a machine without power says nothing."""
        for address, (owner, _) in list(self.listeners.items()):
            if owner is process:
                del self.listeners[address]
        for end in self._ends.pop(process, {}):
            if not end.closing:
                end.closing = True
                if process.machine.powered:
                    self.send(end, end.peer.receive_end)
            end.lost = True

    def dispose(self) -> None:
        """After the simulation: nothing is left open for a destructor to close."""
        for end in [end for ends in self._ends.values() for end in ends]:
            end.closing = end.lost = True

    # --- segments -------------------------------------------------------------------------------

    def send(self, end: Transport, deliver: Callable[..., None], *args: object) -> None:
        source, dest = end.process.machine, end.peer.process.machine
        if not source.powered or not dest.powered:
            return
        if not self.reaches(source, dest):
            self._tally.hit("silence")
            end.held.append((deliver, args))
            return
        delay_us = self.delay_us.get(source.name, 0) + self.delay_us.get(dest.name, 0)
        if delay_us:
            self._tally.hit("delay")
        arrives_us = self._timeline.now_us + end.chance.randint(*LATENCY_US) + delay_us
        end.arrives_us = max(end.arrives_us, arrives_us)
        self._timeline.at(end.arrives_us, deliver, *args)

    def reaches(self, source: Machine, dest: Machine) -> bool:
        return dest.powered and not self._silent.get((source.name, dest.name))

    def garbled(self, end: Transport, data: bytes) -> bytes:
        """What arrives of it: TCP's own checksum lets one in many through. Such that its reader can
        know: a length, or what begins a message. A number that became another one is a message
        like any other; only TLS tells."""
        if not self._garbles[end.process.name] or not data:
            return data
        self._garbles[end.process.name] -= 1
        self._tally.hit("frame_garbled")
        at = end.chance.randrange(min(len(data), HEADER.size + 1))
        wrong = data[at] ^ (1 << end.chance.randrange(8)) if at < HEADER.size else NO_MESSAGE
        return data[:at] + bytes([wrong]) + data[at + 1 :]

    # --- faults ---------------------------------------------------------------------------------

    def garble(self, process: Process, *, count: int) -> None:
        """Of what it sends next, so many writes."""
        self._garbles[process.name] += count

    def silence(self, source: str, dest: str, for_ms: int) -> None:
        pair = (source, dest)
        self._silent[pair] = self._silent.get(pair, 0) + 1
        self._timeline.after(for_ms * US_PER_MS, self._heal, pair)

    def _heal(self, pair: tuple[str, str]) -> None:
        self._silent[pair] -= 1
        if self._silent[pair]:
            return
        for end in [end for ends in self._ends.values() for end in ends]:
            ends = (end.process.machine.name, end.peer.process.machine.name)
            if ends == pair and end.held:
                held, end.held = end.held, []
                wait_us = end.chance.randint(*RETRANSMIT_US)
                end.arrives_us = max(end.arrives_us, self._timeline.now_us + wait_us)
                for deliver, args in held:
                    self.send(end, deliver, *args)

    def delay(self, machine: str, delay_ms: int, for_ms: int) -> None:
        self.delay_us[machine] = self.delay_us.get(machine, 0) + delay_ms * US_PER_MS
        self._timeline.after(for_ms * US_PER_MS, self._undelay, machine, delay_ms * US_PER_MS)

    def _undelay(self, machine: str, delay_us: int) -> None:
        self.delay_us[machine] -= delay_us

    def cut(self, process: Process) -> int:
        """Reset every connection of the process, as a firewall would. How many there were."""
        ends = [end for end in self._ends.get(process, {}) if not end.closing]
        for end in ends:
            end.receive_reset()
            end.peer.receive_reset()
        return len(ends)
