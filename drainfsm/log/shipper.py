"""Brings the journals of a job into the stream, in the background, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path

from drainfsm.core.backoff import backoff_s
from drainfsm.core.codec import decode_as_stored
from drainfsm.core.records import Record
from drainfsm.errors import (
    BrokerError,
    JournalCorruptError,
    RecordRefusedError,
    RecordUnreadableError,
    StaleWriterError,
)
from drainfsm.log.jetstream import Connection, connect
from drainfsm.log.journal import Journal, journals, read_journal
from drainfsm.log.server import NatsServer
from drainfsm.log.shipment import Shipment
from drainfsm.log.shipped import (
    Note,
    Notes,
    message_counts,
    note_of,
    read_notes,
    still_true,
    write_notes,
)

DAY_MS = 86_400_000
CONNECT_S = 2.0
CLOSE_S = 1.0
RETRY_S, RETRY_S_MAX = 0.1, 15.0
FLUSH_RETRY_S_MAX = 1.0
"""While somebody waits for it."""

FAILURES_MAX = 3
"""In a row: then the connection itself is suspect, and a new one is made."""

REPORTED_MAX = 100
"""Different messages remembered, so that an outage is reported once."""

_read_as_stored = partial(read_journal, each=decode_as_stored)


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """The server, and the journals of the state directory."""

    connect: Callable[..., Awaitable[Connection]] = connect
    journals: Callable[[Path, str], Mapping[int, Path]] = journals
    read_journal: Callable[[Path], Iterable[Record]] = _read_as_stored
    noted: bool = True
    """Notes are kept beside the journals (``drainfsm.log.shipped``)."""


class Shipper:
    """Nobody waits for it except callers of ``flush`` and ``close``.

    One message a record, in the order of the journal, each exactly once over any number of
    restarts; journals of earlier attempts in the same state directory first. All calls belong to
    one event loop.
    """

    def __init__(
        self,
        *,
        server: NatsServer | str,
        state_dir: Path,
        job_id: str,
        on_error: Callable[[str], None],
        replicas: int = 1,
        sync_always: bool | None = None,
        world: World | None = None,
    ) -> None:
        """``on_error`` hears of every trouble once, until it is over. ``sync_always``: what is
        known of the server (the embedded one: True), for a warning about what may be lost.
        ``world``: the simulator has its own."""
        self._server = server
        self._state_dir = state_dir
        self._job_id = job_id
        self._on_error = on_error
        self._replicas = replicas
        self._sync_always = sync_always
        self._world = World() if world is None else world
        self._connection: Connection | None = None
        self._ready = self._known = False
        self._live: Shipment | None = None
        self._earlier: dict[int, Shipment] = {}
        self._notes: dict[int, Note] = {}
        """Of earlier attempts that the stream is known to have."""

        self._asked_known = False
        self._once_whole: set[int] = set()
        """Of earlier attempts that the stream was known to have at some time."""

        self._stream = ""
        """When it was created."""

        self._damaged: set[int] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._hurry = asyncio.Event()
        self._flushes = 0
        """Under way."""

        self._to_confirm = False
        """Somebody waits, and the stream has not been asked yet what it has."""

        self._reported: set[str] = set()
        self._reported_for_good: set[str] = set()

    def attach(self, journal: Journal) -> None:
        """Ship this journal too, as it grows."""
        self._live = Shipment(journal.records, job_id=journal.job_id, epoch=journal.epoch)
        self.poke()

    async def start(self) -> None:
        """Begin. Returns at once; a server that is away is looked for until ``close``."""
        self._task = asyncio.create_task(self._run(), name="drainfsm-shipper")
        self._task.add_done_callback(self._ended)

    def poke(self) -> None:
        """There is something to ship."""
        self._idle.clear()
        self._wake.set()

    async def flush(self, *, timeout_ms: int) -> bool:
        """Wait until everything is shipped, so far as it can be. False: something is not."""
        self._to_confirm = True
        self.poke()
        self._hurry.set()
        self._flushes += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1_000):
                    await self._idle.wait()
        finally:
            self._flushes -= 1
        return (
            self._idle.is_set()
            and not self._damaged
            and not any(shipment.conflict for shipment in self._shipments())
        )

    @property
    def reachable(self) -> bool:
        """The server has answered, and the connection to it is up as far as is known."""
        connection = self._connection
        return self._ready and connection is not None and not connection.closed

    @property
    def known(self) -> bool:
        """The server has answered in this attempt: it may be back in a moment."""
        return self._known

    async def close(self, *, timeout_ms: int) -> None:
        """Stop. What is not shipped stays in the journal, for the next attempt to ship."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_ms / 1_000
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=timeout_ms / 1_000)
        await self._disconnect(timeout_s=max(0.0, give_up - loop.time()))

    # --- the background ----------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            self._hurry.clear()
            try:
                await self._ship()
            except BrokerError as error:
                self._tell(f"{error}")
                self._ready = False
                failures += 1
                if failures % FAILURES_MAX == 0:
                    await self._disconnect(timeout_s=CLOSE_S)
                longest_s = FLUSH_RETRY_S_MAX if self._flushes else RETRY_S_MAX
                await self._pause(backoff_s(failures, first_s=RETRY_S, longest_s=longest_s))
                continue
            failures = 0
            self._reported.clear()
            if not self._wake.is_set():
                self._idle.set()
                await self._wake.wait()

    async def _ship(self) -> None:
        """Everything that the stream lacks.

        Raises:
            BrokerError: not now. A refused record of one attempt does not delay the others.
        """
        connection = await self._connected()
        await self._skip_known(connection)
        await self._load_earlier(connection.forgets_after_ms)
        refused: RecordRefusedError | None = None
        for shipment in self._shipments():
            if shipment.conflict:
                continue
            try:
                await shipment.ship(connection)
                if shipment.found_less():
                    self._earlier.clear()
                    self._notes.clear()
                    self.poke()
                if shipment is not self._live:
                    shipment.unload()
            except StaleWriterError:
                self._tell(
                    f"{shipment.subject} holds {shipment.conflict}: is another job named "
                    f"{self._job_id!r} using this server? This attempt's log stays in its journal",
                    for_good=True,
                )
            except RecordRefusedError as error:
                refused = error
        await self._confirm(connection)
        self._tell_forgotten(connection.forgets_after_ms)
        await self._note(connection)
        if refused is not None:
            raise refused

    async def _confirm(self, connection: Connection) -> None:
        """Whether the stream has what it acknowledged: what an administrator changes under way (a
        mapping of subjects, a stream that evicts) shows in no acknowledgement."""
        live = self._live
        if not self._to_confirm or live is None or live.conflict:
            return
        count = await connection.count(live.subject)
        self._to_confirm = False
        forgotten_count = live.forgotten(connection.forgets_after_ms)
        expected = live.shipped_count - forgotten_count if forgotten_count else live.message_count
        if count < expected:
            self._tell(
                f"the stream has {count} of the {expected} records of {live.subject} "
                "that it acknowledged: does the server map subjects, or was the stream changed? "
                "The others are shipped again"
            )
            live.doubt()
            self.poke()

    def _tell_forgotten(self, after_ms: int) -> None:
        if (live := self._live) is not None and live.forgotten(after_ms):
            self._tell(
                f"the stream keeps records for {after_ms / DAY_MS:.3g} days: early ones of "
                f"{live.subject} leave it, and are not shipped again; the journal has them",
                for_good=True,
            )

    def _shipments(self) -> list[Shipment]:
        """Oldest attempt first, the live one last."""
        found = [self._earlier[epoch] for epoch in sorted(self._earlier)]
        return found if self._live is None else [*found, self._live]

    async def _skip_known(self, connection: Connection) -> None:
        """Once a connection: journals that the stream is known to have."""
        if self._asked_known or not self._world.noted:
            return
        paths = self._earlier_journals()
        notes = await asyncio.to_thread(read_notes, self._state_dir, self._job_id)
        noted = notes.attempts if notes.stream == connection.stream_created else ()
        self._once_whole = set(noted)
        if notes.attempts and paths:
            counts = await message_counts(connection, self._job_id)
            stream = connection.stream_created
            self._notes = {
                epoch: notes.attempts[epoch]
                for epoch in still_true(notes, stream=stream, counts=counts, paths=paths)
            }
        self._asked_known = True

    async def _note(self, connection: Connection) -> None:
        """What was shipped by now, for the next attempt."""
        paths = self._earlier_journals() if self._world.noted else {}
        whole = {
            epoch: note_of(paths[epoch], message_count=shipment.message_count)
            for epoch, shipment in self._earlier.items()
            if epoch in paths and shipment.whole and epoch not in self._damaged
        }
        if whole.keys() <= self._notes.keys():
            return
        self._notes |= whole
        notes = Notes(stream=connection.stream_created, attempts=self._notes)
        await asyncio.to_thread(write_notes, self._state_dir, self._job_id, notes)

    def _earlier_journals(self) -> dict[int, Path]:
        live = self._live
        found = self._world.journals(self._state_dir, self._job_id)
        return {epoch: path for epoch, path in found.items() if live is None or epoch < live.epoch}

    async def _load_earlier(self, forgets_after_ms: int) -> None:
        """``forgets_after_ms``: what is older than the stream keeps it is not shipped again."""
        live, untold = self._live, list[int]()
        for epoch, path in self._earlier_journals().items():
            if epoch in self._earlier or epoch in self._notes:
                continue
            records, damage = await asyncio.to_thread(_whole_records, path, self._world)
            if damage:
                self._damaged.add(epoch)
                self._tell(
                    f"{damage}; the {len(records)} records before it are shipped", for_good=True
                )
            count = _forgotten_count(records, live, forgets_after_ms)
            if count and count == len(records) and epoch not in self._once_whole:
                untold.append(epoch)
            self._earlier[epoch] = Shipment(
                records, job_id=self._job_id, epoch=epoch, forgotten_count=count
            )
        if untold:
            self._tell(
                f"the stream keeps records for {forgets_after_ms / DAY_MS:.3g} days: attempts "
                f"{untold[0]} to {untold[-1]} are older, and what is not in it of them is not "
                "shipped; their journals have it",
                for_good=True,
            )

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._world.connect(
                self._server, timeout_s=CONNECT_S, on_error=self._tell
            )
            connection.link.reconnect_hooks.append(self._reconnected)
            self._connection = connection
            self._forget()
        if not self._ready or self._to_confirm:
            warnings = await connection.ensure_stream(
                replicas=self._replicas, sync_always=self._sync_always
            )
            for warning in warnings:
                self._tell(f"warning: {warning}", for_good=True)
            if connection.created_stream() or connection.stream_created != self._stream:
                self._forget()
                self._stream = connection.stream_created
            self._ready = self._known = True
        return connection

    def _reconnected(self) -> None:
        """The server may have come back with less than it had, or as another one."""
        self._forget()
        self._hurry.set()
        self.poke()

    def _forget(self) -> None:
        self._ready = self._asked_known = False
        self._earlier.clear()
        self._notes.clear()
        if self._live is not None:
            self._live.doubt()

    async def _disconnect(self, *, timeout_s: float) -> None:
        connection, self._connection = self._connection, None
        self._ready = False
        if connection is not None:
            await connection.close(timeout_s=timeout_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    def _tell(self, message: str, *, for_good: bool = False) -> None:
        """Once until the trouble is over; ``for_good``: once."""
        reported = self._reported_for_good if for_good else self._reported
        if message not in reported and len(reported) < REPORTED_MAX:
            reported.add(message)
            self._on_error(message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(f"the shipper stopped (a bug; the journal has everything): {error!r}")


def _forgotten_count(records: list[Record], live: Shipment | None, after_ms: int) -> int:
    """By the clock of this machine's journals, as of the newest record."""
    if not after_ms or live is None or not live.records:
        return 0
    oldest_unix_ms = live.records[-1].at_unix_ms - after_ms
    return sum(1 for _ in takewhile(lambda one: one.at_unix_ms < oldest_unix_ms, records))


def _whole_records(path: Path, world: World) -> tuple[list[Record], str]:
    """The records of a journal up to where it is damaged, and what the damage is."""
    records: list[Record] = []
    try:
        for record in world.read_journal(path):
            records.append(record)
    except (JournalCorruptError, RecordUnreadableError, OSError) as error:
        return records, f"{error}"
    return records, ""
