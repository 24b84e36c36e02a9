"""Reads the signals of one cloud for as long as the agent lives, each at its own pace."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable

import msgspec

from drainfsm.adapter import AdapterContext, NoticeSink
from drainfsm_adapters.health import Health
from drainfsm_adapters.ledger import Ledger, Reading, unknown
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError

JITTER = 0.2
"""Up to this share of the interval is left out, so that the nodes of a job do not poll in step."""

HELD_S = 0.2
"""An answer that took longer was held back by a long poll until the value changed."""

CONFIRM_S = 1.1
"""Until a change that awaits its confirmation is looked at again: the next second, at least,
because a sliding deadline is another one then."""

CALLS_MAX = 3
"""Most calls of one read, one after the other: a token, its diagnosis, a key."""

UNKNOWN_POLL_S = 5.0
"""A signal that could not be read is read again no later than this, however rarely it is polled."""

PAUSE_S_MIN = 0.02
"""Between two reads, whatever the server does."""


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a platform tells."""

    name: str
    read: Callable[[], Awaitable[Reading]]
    """Raises ``NoAnswerError`` for UNKNOWN."""

    poll_s: float
    unknown_s: float
    held_s: float = 0.0
    """Above 0: a long poll, which may hold its answer back for this long."""

    confirm_count: int = 1
    """Readings that must lack an event before it is taken as gone."""


class Platform(msgspec.Struct, frozen=True, kw_only=True):
    """What the module of a cloud knows: whom to ask, and what."""

    source: str
    client: MetadataClient
    name: Callable[[], Awaitable[str]]
    """This machine's name, part of every notice's identity; raises ``NoAnswerError``."""

    signals: tuple[Signal, ...]


class CloudAdapter:
    """A notice source that polls."""

    def __init__(self, context: AdapterContext, platform: Platform) -> None:
        self._context = context
        self._platform = platform
        self._naming = asyncio.Lock()

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled."""
        ledger = Ledger(
            source=self._platform.source,
            sink=sink,
            clock=self._platform.client.clock,
            now_unix_ms=self._context.now_unix_ms,
        )
        self._platform.client.keep_connections()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._learn_scope(ledger))
                for signal in self._platform.signals:
                    group.create_task(self._follow(signal, ledger, self._health(signal, sink)))
        finally:
            self._platform.client.close()

    def _health(self, signal: Signal, sink: NoticeSink) -> Health:
        return Health(
            source=f"{self._platform.source}/{signal.name}",
            limit_ms=round(signal.unknown_s * 1_000),
            sink=sink,
        )

    async def _learn_scope(self, ledger: Ledger, *, otherwise: str = "") -> None:
        """Get the machine's name for the identity of notices, which must not change later."""
        async with self._naming:
            if ledger.named:
                return
            try:
                ledger.name(await self._platform.name())
            except NoAnswerError:
                ledger.name(otherwise)

    async def _follow(self, signal: Signal, ledger: Ledger, health: Health) -> None:
        now_unix_ms = self._context.now_unix_ms
        before: Reading | None = None
        while True:
            began = now_unix_ms()
            reading = await self._read(signal, health)
            if reading.events and not ledger.named:  # a notice does not wait for long
                await self._learn_scope(ledger, otherwise=self._own_name)
            unsure = ledger.settle(signal.name, reading, confirm_count=signal.confirm_count)
            now = now_unix_ms()
            if reading.complete:
                health.answered()
            else:
                health.silent(detail=reading.detail, since_unix_ms=began, now_unix_ms=now)
            took_s = (now - began) / 1_000
            pause_s = _pause_s(signal, reading, before, took_s=took_s)
            await asyncio.sleep(min(pause_s, CONFIRM_S) if unsure else pause_s)
            before = reading

    async def _read(self, signal: Signal, health: Health) -> Reading:
        """A read that does not return is UNKNOWN like any other, by the clock."""
        now_unix_ms = self._context.now_unix_ms
        began = now_unix_ms()
        reading = asyncio.ensure_future(_read(signal))
        try:
            calls_s = CALLS_MAX * self._platform.client.timeout_s
            limit_s = signal.held_s + max(signal.unknown_s, calls_s)
            await asyncio.wait({reading}, timeout=limit_s)
            if not reading.done():
                detail = f"no answer for {limit_s:g} s"
                health.silent(detail=detail, since_unix_ms=began, now_unix_ms=now_unix_ms())
            return await reading
        finally:
            reading.cancel()

    @property
    def _own_name(self) -> str:
        """For platforms that do not tell the machine's name: one that no other machine has."""
        return f"{socket.gethostname()}-node{self._context.node_rank}"


async def _read(signal: Signal) -> Reading:
    try:
        return await signal.read()
    except NoAnswerError as error:
        return unknown(str(error))
    except Exception as error:  # a fault of ours in one signal must not blind the others
        return unknown(f"fault in the adapter: {error!r}")


def _pause_s(signal: Signal, reading: Reading, before: Reading | None, *, took_s: float) -> float:
    """Until the next read. Polls keep their pace however long an answer takes."""
    waits_itself = signal.held_s > 0 and reading.complete
    if waits_itself and (took_s >= HELD_S or reading != before):
        return PAUSE_S_MIN
    poll_s = signal.poll_s if reading.complete else min(signal.poll_s, UNKNOWN_POLL_S)
    interval_s = poll_s * (1 - JITTER * random.random())
    return max(PAUSE_S_MIN, interval_s - took_s)
