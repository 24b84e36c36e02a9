"""A notice sink in memory, for trying an adapter without an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from drainfsm.adapter import Adapter, NoticeSource
from drainfsm.core.notice import Notice


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    native_id: str
    reason: str


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """The source has not been able to tell since then; None: it can again."""

    source: str
    since_unix_ms: int | None
    detail: str


class RecordingSink:
    """Keeps what a source says, in its order, and lets a test wait for it."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.withdrawals: list[Withdrawal] = []
        self.silences: list[Silence] = []
        self._heard = asyncio.Event()

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._heard.set()

    def withdraw(self, *, source: str, native_id: str, reason: str) -> None:
        self.withdrawals.append(Withdrawal(source=source, native_id=native_id, reason=reason))
        self._heard.set()

    def unknown(self, *, source: str, since_unix_ms: int, detail: str) -> None:
        self.silences.append(Silence(source=source, since_unix_ms=since_unix_ms, detail=detail))
        self._heard.set()

    def recovered(self, *, source: str) -> None:
        self.silences.append(Silence(source=source, since_unix_ms=None, detail=""))
        self._heard.set()

    @property
    def identities(self) -> list[str]:
        """The identities heard, each once, in the order in which they first came."""
        return list(dict.fromkeys(notice.identity for notice in self.notices))

    @property
    def standing(self) -> dict[str, int | None]:
        """Earliest deadline by identity of the notices that were not withdrawn."""
        gone = {f"{withdrawn.source}/{withdrawn.native_id}" for withdrawn in self.withdrawals}
        found: dict[str, int | None] = {}
        for notice in self.notices:
            if notice.identity not in gone:
                earlier = [d for d in (notice.deadline_unix_ms, found.get(notice.identity)) if d]
                found[notice.identity] = min(earlier, default=None)
        return found

    @property
    def unknown_now(self) -> list[str]:
        """Sources that have said that they cannot tell."""
        latest = {silence.source: silence.since_unix_ms for silence in self.silences}
        return [source for source, since in latest.items() if since is not None]

    async def until(self, happened: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
        """Wait until what was heard makes ``happened`` true.

        Raises:
            TimeoutError: it did not.
        """
        async with asyncio.timeout(timeout_s):
            while not happened():
                self._heard.clear()
                await self._heard.wait()


@asynccontextmanager
async def watching(adapter: Adapter) -> AsyncIterator[RecordingSink]:
    """Runs the adapter's watch for as long as the block; an error of the watch is raised in the
    block."""
    if not isinstance(adapter, NoticeSource):
        raise TypeError(f"{type(adapter).__name__} is not a notice source: it has no watch")
    sink = RecordingSink()
    watch = asyncio.create_task(adapter.watch(sink))
    try:
        yield sink
    finally:
        watch.cancel()
        await asyncio.wait([watch])
        if not watch.cancelled():
            watch.result()
