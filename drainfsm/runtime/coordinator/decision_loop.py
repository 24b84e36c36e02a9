"""The one writer of an attempt's log: inputs in, decided, journaled, and only then acted upon."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence

import msgspec

from drainfsm.core.codec import link_behind
from drainfsm.core.deadline import next_wake_unix_ms
from drainfsm.core.decider import decide
from drainfsm.core.events import Event, MissingRank
from drainfsm.core.fold import evolve
from drainfsm.core.inputs import AnyInput, Tick
from drainfsm.core.overslept import HEAR_MS, given_anew, overslept
from drainfsm.core.records import Record
from drainfsm.core.state import State, first_state
from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import Journal
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.threads import Worker, in_thread

BATCH_MAX = 64
"""Records that share one fsync: the inputs that came while the last one was under way."""

APPEND_PAUSE_S = 0.25
"""Before a refused append is tried again. It has no limit: nothing can happen without it, and the
agents end the job by its deadline on their own."""

KEEP_S = 2.0
"""For the store to take a record that the journal refused."""

WAKE_PAUSE_S = 0.05
"""Between ticks that changed nothing."""


class Asked(msgspec.Struct, frozen=True):
    given: AnyInput
    answer: asyncio.Future[State]


class Decided(msgspec.Struct, frozen=True):
    """One decision that is on record."""

    events: tuple[Event, ...]
    state: State
    """After the record."""


class DecisionLoop:
    """Owns the state. One task runs it; everybody else submits inputs."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        act: Callable[[Decided], None],
        missing: Callable[[State], tuple[MissingRank, ...]],
        warn: Callable[[str], None],
        keep: Callable[[Sequence[Record]], None] | None = None,
        sign: Callable[[Record], Record] | None = None,
    ) -> None:
        """``keep``: stores records elsewhere, when the journal's disk is full. ``sign``: says of a
        record whose it is."""
        self.state = first_state(job_id=journal.job_id, epoch=journal.epoch)
        self._journal = journal
        self._clock = clock
        self._act = act
        self._missing = missing
        self._warn = warn
        self._keep = keep
        self._sign = sign
        self._kept: list[Record] = []
        """On record elsewhere, and not yet in the journal."""

        self._asked: asyncio.Queue[Asked] = asyncio.Queue()
        self._writer = Worker("journal")
        self._timer: asyncio.TimerHandle | None = None
        self._ticking = False
        self._due_unix_ms = 0
        """When the next tick is due."""

        self._heard_first: tuple[str, int] = ("", 0)
        """The drain whose sources are heard before it begins, and until when."""

    def submit(self, given: AnyInput) -> asyncio.Future[State]:
        """Resolves to the state once what follows from the input is on record; raises what the
        core raises on an input that it rejects. Need not be awaited: rejections are logged."""
        answer: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._asked.put_nowait(Asked(given, answer))
        return answer

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                batch = [await self._asked.get()]
                while len(batch) < BATCH_MAX and not self._asked.empty():
                    batch.append(self._asked.get_nowait())
                await self._handle(batch)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._writer.stop()

    async def _handle(self, batch: list[Asked]) -> None:
        now_unix_ms = self._clock.now_unix_ms()
        state = self.state
        records: list[Record] = []
        decided: list[Decided] = []
        answers: list[tuple[asyncio.Future[State], State]] = []
        for asked in batch:
            try:
                events = decide(state, asked.given, now_unix_ms=now_unix_ms)
            except DrainfsmError as error:
                self._reject(asked, error)
                continue
            if events:
                state = _evolve(state, events)
                records.append(self._record(events, now_unix_ms, records))
                decided.append(Decided(events, state))
            answers.append((asked.answer, state))
        if records and self._sign is not None:
            records[-1] = self._sign(records[-1])  # it names those before it
        await self._append(records)
        self.state = state
        for one in decided:
            self._act(one)
        for answer, after in answers:
            if not answer.done():
                answer.set_result(after)
        self._set_timer()

    def _reject(self, asked: Asked, error: DrainfsmError) -> None:
        self._warn(str(error))
        if not asked.answer.done():
            asked.answer.set_exception(error)

    def _record(self, events: tuple[Event, ...], now_unix_ms: int, earlier: list[Record]) -> Record:
        """``earlier``: of the same batch."""
        newest = next((found for found in (earlier, self._kept) if found), self._journal.records)
        return Record(
            id=uuid.uuid4().hex,
            job_id=self.state.attempt.job_id,
            epoch=self.state.attempt.epoch,
            follows=self._journal.count + len(self._kept) + len(earlier),
            at_unix_ms=now_unix_ms,
            events=events,
            before=link_behind(newest),
        )

    async def _append(self, records: list[Record]) -> None:
        warned = False
        while records:
            try:
                await self._writer.do(lambda: self._journal.append(*self._kept, *records))
            except OSError as error:
                if await self._kept_elsewhere(records, error):
                    return
                if not warned:
                    self._warn(
                        f"cannot write the journal {self._journal.path}: {error}; nothing is "
                        "decided until it can (free space there); the agents keep the deadline"
                    )
                warned = True
                await asyncio.sleep(APPEND_PAUSE_S)
            else:
                self._kept.clear()
                return

    async def _kept_elsewhere(self, records: list[Record], error: OSError) -> bool:
        """The records are facts nevertheless, and the journal gets them once it can be written."""
        keep = self._keep
        if keep is None:
            return False
        try:
            async with asyncio.timeout(KEEP_S):
                await in_thread("keep", lambda: keep(records))
        except (TimeoutError, DrainfsmError, OSError):
            return False
        if not self._kept:
            self._warn(
                f"cannot write the journal {self._journal.path}: {error}; what is decided is on "
                "record in the store instead, under log/, until it can (free space there)"
            )
        self._kept += records
        return True

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = next_wake_unix_ms(self.state)
        if wake is None:
            return
        drain = self.state.drain
        if drain is not None and drain.drain_id == self._heard_first[0]:
            wake = max(wake, self._heard_first[1])
        self._due_unix_ms = max(wake, self._clock.now_unix_ms())
        delay_s = self._clock.seconds_until(wake)
        if self._ticking:  # the last tick changed nothing, or another follows at once
            delay_s = max(delay_s, WAKE_PAUSE_S)
        self._ticking = False
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        now_unix_ms = self._clock.now_unix_ms()
        drain = self.state.drain
        if drain is not None and self._heard_first[0] != drain.drain_id:
            late_ms = now_unix_ms - self._due_unix_ms
            if overslept(self.state, now_unix_ms=now_unix_ms, late_ms=late_ms):
                self._heard_first = (drain.drain_id, now_unix_ms + HEAR_MS)
                self._set_timer()
                return
        elif given := given_anew(self.state, now_unix_ms=now_unix_ms):
            for one in given:
                self.submit(one)
            return
        self._ticking = True
        self.submit(Tick(missing=self._missing(self.state)))


def _evolve(state: State, events: tuple[Event, ...]) -> State:
    for event in events:
        state = evolve(state, event)
    return state
