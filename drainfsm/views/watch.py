"""Keeps a projection up to date from the stream, from journals or from a file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from drainfsm.core.codec import decode
from drainfsm.core.records import subjects_of
from drainfsm.errors import BrokerError, ConfigError, RecordUnreadableError
from drainfsm.log.stream import StreamIdentity
from drainfsm.views.growing_file import GrowingFile, projected
from drainfsm.views.history import History, read_file, read_journals, read_stream
from drainfsm.views.journals import GrowingJournals
from drainfsm.views.projections import Projection

if TYPE_CHECKING:
    from drainfsm.log.jetstream import Connection
    from drainfsm.log.server import NatsServer
    from drainfsm.log.wire import BrokerMessage

POLL_S = 0.5
LOOK_S = 2.0
"""Between two looks at the stream itself: whoever follows it hears nothing where it is gone."""

NOWHERE = 1 << 60
"""A sequence that no stream comes to: a read behind it says only whether there can be one."""
CONNECT_S = 5.0


class Reader:
    """Keeps the projection up to date from one place, even if that place comes and goes."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        job: str | None = None,
        nats: NatsServer | str = "",
        file: Path | None = None,
        state_dir: Path,
    ) -> None:
        """``clock``: Unix time in milliseconds. ``file`` wins over ``nats``, and that over the
        journals in ``state_dir``. ``job`` None: all jobs."""
        self.projection = Projection()
        self.stale_since_unix_ms: int | None = None
        self.error = ""
        self.clock = clock
        self.changed = asyncio.Event()
        self._job = job
        self._nats = nats
        self._file = file
        self._state_dir = state_dir
        self._growing = None if file is None else GrowingFile(file)
        self._stream = StreamIdentity()
        self._journals = GrowingJournals(self._journal_paths)

    @property
    def where(self) -> str:
        if self._file is not None:
            return str(self._file)
        if self._nats:
            from drainfsm.log.server import public

            return public(self._nats)
        return f"journals of {self._job or self._state_dir}"

    @property
    def public_name(self) -> str:
        """The same for people on other machines: no path of this one."""
        if self._file is not None:
            return self._file.name
        return self.where if self._nats else f"the journals of {self._job or 'all jobs'}"

    async def run(self) -> None:
        """Until cancelled."""
        if self._nats and self._file is None:
            await self._follow(self._nats)
        while True:
            self.poll()
            await asyncio.sleep(POLL_S)

    def poll(self) -> None:
        """Files: what has come since the last call."""
        try:
            changed = self._poll_file() if self._file is not None else self._poll_journals()
        except (ConfigError, OSError) as error:
            self._stale(str(error))
        else:
            if changed or self.stale_since_unix_ms is not None:
                self._fresh()

    def _poll_journals(self) -> bool:
        changed = self._journals.poll()
        self.projection = self._journals.projection
        return changed

    def _poll_file(self) -> bool:
        assert self._growing is not None
        changed = self._growing.poll()
        self.projection = self._growing.projection
        return changed

    async def once(self) -> None:
        """What is there now.

        Raises:
            BrokerError, ConfigError, OSError: it cannot be read.
        """
        if self._nats and self._file is None:
            from drainfsm.log.jetstream import connect
            from drainfsm.log.stream import SUBJECTS

            connection = await connect(self._nats, timeout_s=CONNECT_S)
            try:
                subject = subjects_of(self._job) if self._job else SUBJECTS
                async for message in connection.messages(subject):
                    self._take(message)
            finally:
                await connection.close()
            return
        if self._file is not None:
            self.projection = projected(read_file(self._file))
        else:
            self._poll_journals()

    def load(self, job_id: str) -> History:
        """The whole log of a job, where it is read from. Blocks.

        Raises:
            BrokerError, ConfigError: it cannot be read.
        """
        if self._file is not None:
            history = read_file(self._file)
            logs = tuple(log for log in history.logs if log.job_id == job_id)
            return History(logs=logs, damage=history.damage)
        if self._nats:
            return read_stream(self._nats, job_id=job_id)
        return read_journals(self._state_dir, job_id=job_id)

    def _journal_paths(self) -> list[Path]:
        from drainfsm.log.journal import job_names, journals

        jobs = job_names(self._state_dir) if self._job is None else [self._job]
        return [path for job in jobs for path in journals(self._state_dir, job).values()]

    async def _follow(self, server: NatsServer | str) -> None:
        from drainfsm.log.jetstream import connect

        while True:
            try:
                connection = await connect(server, timeout_s=CONNECT_S)
            except BrokerError as error:
                self._stale(str(error))
                await asyncio.sleep(POLL_S)
                continue
            watching = asyncio.ensure_future(self._watch(connection))
            try:
                following = connection.follow_messages(
                    self._job or "", after_sequence=self.projection.sequence
                )
                async with contextlib.aclosing(following) as messages:
                    async for message in messages:
                        self._take(message)
            except BrokerError as error:
                if watching.done():
                    watching.result()  # it is read anew
                else:
                    self._stale(str(error))
            finally:
                watching.cancel()
                await connection.close()

    async def _watch(self, connection: Connection) -> None:
        """Whether the log can be read, and is the one that was. Ends the connection if not."""
        looked_s, loop = -LOOK_S, asyncio.get_running_loop()
        while True:
            wrong = "" if connection.link.connected else "the server is away"
            if not wrong and loop.time() - looked_s >= LOOK_S:
                sequence = self.projection.sequence
                wrong = await _unreadable(connection, self._job)
                if not wrong and await self._stream.changed(connection.stream_info, sequence):
                    self.projection = Projection()
                    self.changed.set()
                    await connection.close()
                    return
                looked_s = loop.time() - (LOOK_S if wrong else 0)
            if wrong:
                self._stale(wrong)
            elif self.stale_since_unix_ms is not None:
                self._fresh()
            await asyncio.sleep(POLL_S)

    def _take(self, message: BrokerMessage) -> None:
        sequence = message.sequence
        try:
            record = decode(message.data)
            if record.job_id != message.job_id:
                raise RecordUnreadableError(f"it says that it is of job {record.job_id!r}")
        except RecordUnreadableError as error:
            self.projection.read_garbage(f"message {sequence}: {error}", sequence=sequence)
        else:
            self.projection.read(record, sequence=sequence)
        self.changed.set()

    def _stale(self, error: str) -> None:
        if self.stale_since_unix_ms is None:
            self.stale_since_unix_ms = self.clock()
        self.error = error
        self.changed.set()

    def _fresh(self) -> None:
        if self.stale_since_unix_ms is not None:
            self.stale_since_unix_ms = None
            self.error = ""
        self.changed.set()


async def _unreadable(connection: Connection, job: str | None) -> str:
    """Why the stream cannot be read; empty: it can."""
    from drainfsm.log.stream import SUBJECTS

    try:
        async for _ in connection.messages(
            subjects_of(job) if job else SUBJECTS, after_sequence=NOWHERE
        ):
            pass
    except BrokerError as error:
        return str(error)
    return ""
