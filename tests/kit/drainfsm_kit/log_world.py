"""Runs a journal, two shippers of it and a reader, as ``specs/models/Log.tla`` has them.

The broker holds one subject. Which message arrives, when, how often, and who hears of it, is the
choice's; a few stale ones leak through, and the broker may come back with less than it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from drainfsm.core.codec import encode
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record
from drainfsm.errors import BrokerError, StaleWriterError
from drainfsm.log.frames import frame
from drainfsm.log.jetstream import Connection
from drainfsm.log.journal import Journal, read_journal
from drainfsm.log.shipment import Shipment
from drainfsm.log.wire import BrokerMessage
from drainfsm.testing.scenario import Scenario

SHIPPERS = (1, 2)
RECORDS, LEAKS, RELAPSES = 3, 1, 1
STEPS_MAX = 60
NONE = (0, 0)
Recorded = dict[str, Any]


class Sent(NamedTuple):
    """A message as the model writes it. ``expect``: how many the subject held."""

    by: int
    record: int
    expect: int


class _Shipper:
    """One shipper, and the connection that it believes to have."""

    forgets_after_ms = 0

    def __init__(self, world: World, number: int, records: list[Record]) -> None:
        self.number = number
        self.shipment = Shipment(records, job_id="job", epoch=1)
        self.waits_for: Sent | None = None
        self.looked = False
        """It has read the stream, and the trace does not show it yet."""

        self.task: asyncio.Task[None] | None = None
        self._world = world
        self._answer: asyncio.Future[int]

    async def ship(self) -> None:
        with contextlib.suppress(BrokerError):
            await self.shipment.ship(cast(Connection, self))

    @property
    def believes(self) -> tuple[int, int]:
        if self.waits_for is not None:
            return self.waits_for.record, self.waits_for.expect
        sequence = self.shipment._sequence
        if sequence is None or self.shipment._doubted:
            return NONE
        return self.shipment.shipped_count + 1, sequence

    def answer(self, sequence: int | None, *, refused: bool = False) -> None:
        """What the call that waits is told; None: nothing."""
        if sequence is not None:
            self._answer.set_result(sequence)
        elif refused:
            error = StaleWriterError("subject", expected_count=0, actual_count=None)
            self._answer.set_exception(error)
        else:
            self._answer.set_exception(BrokerError("no answer"))
        self.waits_for = None

    # --- what ``Shipment`` asks of a connection -------------------------------------------------

    async def append(self, record: Record, *, after_sequence: int) -> int:
        sent = Sent(self.number, self._world.number_of(record), after_sequence)
        self.waits_for = sent
        self._world.publishes(self, sent)
        self._answer = asyncio.get_running_loop().create_future()
        return await self._answer

    async def count(self, subject: str) -> int:
        stream = self._world.stream
        self.looked = not stream
        return len(stream)

    async def delivered(self, subject: str) -> AsyncIterator[BrokerMessage]:
        stream = self._world.stream
        shown = stream[:-1] if self._world.replica_is_behind() else stream
        for sequence, number in enumerate(shown, start=1):
            yield BrokerMessage(sequence, encode(self._world.written[number - 1]))
        self.looked = shown is stream


class World:
    """One run. ``trace``: the model's actions that were taken, and what was there then."""

    def __init__(self, chance: random.Random, directory: Path) -> None:
        self.trace: list[Recorded] = []
        self.stream: list[int] = []
        self.written = Scenario().saving().history[:RECORDS]
        self._chance = chance
        self._path = directory / "journal"
        self._journal: Journal | None = Journal.open(self._path, job_id="job", epoch=1)
        self._flight: set[Sent] = set()
        self._leaked = self._relapsed = 0
        records = self._journal.records
        self._shippers = {number: _Shipper(self, number, records) for number in SHIPPERS}

    async def run(self) -> None:
        for _ in range(STEPS_MAX):
            choices = list(self._choices())
            if not choices:
                break
            self._chance.choice(choices)()
            await self._settle()
        for shipper in self._shippers.values():
            if shipper.task is not None:
                shipper.task.cancel()
        if self._journal is not None:
            self._journal.close()

    async def _settle(self) -> None:
        """Let the shippers go on until each of them waits, or has nothing to ship."""
        for _ in range(20):
            await asyncio.sleep(0)
        for shipper in self._shippers.values():
            if shipper.looked and shipper.waits_for is None:
                shipper.looked = False
                self._took("Look", shipper)

    def _choices(self) -> Iterator[Callable[[], None]]:
        if self._journal is not None:
            if self._journal.count < RECORDS:
                yield self._append
            if self._chance.random() < 0.1:
                yield self._crash
        for shipper in self._shippers.values():
            idle = shipper.task is None or shipper.task.done()
            if idle and not shipper.shipment.done:
                yield partial(self._ship, shipper)
            if shipper.waits_for is not None and self._chance.random() < 0.3:
                yield partial(self._give_up, shipper)
        for sent in sorted(self._flight):
            yield partial(self._arrive, sent)
            if self._chance.random() < 0.2:
                yield partial(self._drop, sent)
        if self.stream and self._relapsed < RELAPSES and self._chance.random() < 0.1:
            yield self._relapse

    # --- journal --------------------------------------------------------------------------------

    def _append(self) -> None:
        assert self._journal is not None
        self._took("Write")
        self._journal.append(self.written[self._journal.count])
        self._took("Sync")

    def _crash(self) -> None:
        """With a record half written, perhaps."""
        assert self._journal is not None
        count = self._journal.count
        self._journal.close()
        self._journal = None
        if count < RECORDS and self._chance.random() < 0.5:
            data = frame(encode(self.written[count]))
            with self._path.open("ab") as file:
                file.write(data[: self._chance.randrange(1, len(data))])
            self._took("Write")
        self._took("Crash")

    def _records(self) -> list[Record]:
        return list(read_journal(self._path))

    def number_of(self, record: Record) -> int:
        return self.written.index(record) + 1

    # --- shippers -------------------------------------------------------------------------------

    def _ship(self, shipper: _Shipper) -> None:
        shipper.task = asyncio.get_running_loop().create_task(shipper.ship())

    def publishes(self, shipper: _Shipper, sent: Sent) -> None:
        if shipper.looked:
            shipper.looked = False
            self._took("Look", shipper)
        self._flight.add(sent)
        self._took("Publish", shipper)

    def _give_up(self, shipper: _Shipper) -> None:
        shipper.answer(None)
        self._took("Doubt", shipper)

    def replica_is_behind(self) -> bool:
        return self._chance.random() < 0.1

    # --- broker and network ---------------------------------------------------------------------

    def _arrive(self, sent: Sent) -> None:
        fits = sent.expect == len(self.stream)
        leaks = not fits and self._leaked < LEAKS and self._chance.random() < 0.3
        if fits or leaks:
            self._leaked += leaks
            self.stream.append(sent.record)
            if self._chance.random() < 0.7:
                self._flight.discard(sent)
        else:
            self._flight.discard(sent)
        shipper = self._shippers[sent.by]
        if shipper.waits_for == sent and self._chance.random() < 0.8:
            if fits or leaks:
                shipper.waits_for = None
                belief = (sent.record + 1, len(self.stream))
                self._took("Arrive", shipper, believes={sent.by: belief})
                shipper.waits_for = sent
                shipper.answer(len(self.stream))
            else:
                shipper.answer(None, refused=True)
                self._took("Arrive", shipper, believes={sent.by: NONE})
        else:
            self._took("Arrive", shipper)

    def _drop(self, sent: Sent) -> None:
        self._flight.discard(sent)
        self._took("Drop")

    def _relapse(self) -> None:
        """Everybody reconnects."""
        self._relapsed += 1
        del self.stream[self._chance.randrange(len(self.stream)) :]
        for shipper in self._shippers.values():
            if shipper.waits_for is not None:
                shipper.answer(None)
            shipper.shipment.doubt()
        self._took("Relapse", believes=dict.fromkeys(SHIPPERS, NONE))

    # --- the trace ------------------------------------------------------------------------------

    def _applied(self) -> int:
        reader = Fold(job_id="job", epoch=1)
        reader.read_all(self.written[number - 1] for number in self.stream)
        return reader.position

    def _took(
        self,
        action: str,
        shipper: _Shipper | None = None,
        *,
        believes: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        known = {one.number: one.believes for one in self._shippers.values()} | (believes or {})
        self.trace.append(
            {
                "action": action,
                "shipper": 0 if shipper is None else shipper.number,
                "after": {
                    "journal": len(self._records()),
                    "stream": list(self.stream),
                    "applied": self._applied(),
                    "flight": frozenset(self._flight),
                    "shippers": [known[number] for number in SHIPPERS],
                },
            }
        )


def walk(seed: int, directory: Path) -> list[Recorded]:
    """The trace of one run; ``directory``: empty."""

    async def run() -> list[Recorded]:
        world = World(random.Random(seed), directory)
        await world.run()
        return world.trace

    return asyncio.run(run())
