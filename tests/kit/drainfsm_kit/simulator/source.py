"""The simulated platform as the adapter of an agent: notices, withdrawals, the cordon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drainfsm.adapter import Adapter, AdapterContext, NoticeSink
from drainfsm.core.notice import Notice
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.windows import Windows

SOURCE = "platform"
CORDON = "cordon"
Word = Callable[[NoticeSink], None]


class Platform:
    """What one node is told. Sources repeat themselves: every word may come twice."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[Word | None] = asyncio.Queue()

    def tell(self, word: Word) -> None:
        self._words.put_nowait(word)

    def fail(self) -> None:
        """The adapter raises; the agent watches it again."""
        self._words.put_nowait(None)

    async def watch(self, sink: NoticeSink) -> None:
        while True:
            word = await self._words.get()
            if word is None:
                raise OSError("the platform's API is away")
            word(sink)


class Cordon:
    """The adapter that cordons: slow, or failing, while a fault says so."""

    def __init__(self, faults: Windows, machine: str, tally: Tally) -> None:
        self._faults = faults
        self._machine = machine
        self._tally = tally

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> str:
        if self._faults.active("failed", self._machine) is not None:
            self._tally.hit("cordon_failed")
            raise OSError("forbidden")
        await asyncio.sleep(0.02)
        if self._faults.active("hung", self._machine) is not None:
            self._tally.hit("cordon_hung")
            await asyncio.sleep(3_600)
        return "cordoned"


def loader(platform: Platform, cordon: Cordon) -> Callable[[str, AdapterContext], Adapter]:
    """In place of the search for entry points."""
    adapters: dict[str, Adapter] = {SOURCE: platform, CORDON: cordon}
    return lambda name, context: adapters[name]


def hears(notice: Notice) -> Word:
    return lambda sink: sink.notice(notice)


def hears_withdrawal(*, source: str, native_id: str, reason: str) -> Word:
    return lambda sink: sink.withdraw(source=source, native_id=native_id, reason=reason)
