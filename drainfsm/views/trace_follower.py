"""Sends each drain as a trace once it is over, for as long as somebody follows the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from drainfsm.core.text import printable
from drainfsm.errors import BrokerError, DrainfsmError
from drainfsm.views.postmortem import postmortems
from drainfsm.views.projections import JobProjection
from drainfsm.views.traces import ended_unix_ms, is_over, send
from drainfsm.views.watch import Reader

RETRY_S = 5.0
"""Until what no collector took, or no log gave, is tried again."""


class TraceFollower:
    """What is sent twice is the same trace, so a follower that starts anew loses nothing."""

    def __init__(self, reader: Reader, *, since_unix_ms: int, say: Callable[[str], None]) -> None:
        """``since_unix_ms``: drains that were over before are left out. ``say``: is told what was
        sent, and what is wrong until when."""
        self._reader = reader
        self._since_unix_ms = since_unix_ms
        self._say = say
        self._seen: dict[str, int] = {}
        """By job: drains that were over when it was last looked at."""

        self._projection = reader.projection
        self._sent: dict[str, set[str]] = {}
        self._wrong = ""
        self._stale_told = False

    async def run(self) -> None:
        """Until cancelled."""
        reading = asyncio.ensure_future(self._reader.run())
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._reader.changed.wait()
                self._reader.changed.clear()
                if reading.done():
                    reading.result()
                self._tell_stale()
                while not await self._send_all():
                    await asyncio.sleep(RETRY_S)
        finally:
            reading.cancel()

    async def _send_all(self) -> bool:
        """False: something has to be tried again."""
        wrong = ""
        if self._projection is not self._reader.projection:  # it was read anew
            self._projection = self._reader.projection
            self._seen.clear()
        for job in list(self._reader.projection.jobs.values()):
            over = sum(job.measures.drains.values())
            if over == self._seen.get(job.job_id, 0):
                continue
            try:
                await self._send(job)
            except (DrainfsmError, OSError) as error:
                wrong = str(error)
            else:
                self._seen[job.job_id] = over
        self._tell_wrong(wrong)
        return not wrong

    async def _send(self, job: JobProjection) -> None:
        """Raises: BrokerError, TraceExportError: it has to be tried again."""
        ended = {one.drain_id for one in job.measures.finished}
        history = await asyncio.to_thread(self._reader.load, job.job_id)
        found = [one for one in postmortems(history.logs) if is_over(one)]
        if behind := ended - {one.drain_id for one in found}:
            raise BrokerError(f"the log that was read lacks the end of {', '.join(sorted(behind))}")
        sent = self._sent.setdefault(job.job_id, set())
        recent = {one.drain_id for one in found if ended_unix_ms(one) >= self._since_unix_ms}
        if fresh := recent - sent:
            count = await asyncio.to_thread(send, found, drain_ids=fresh)
            sent |= fresh
            self._say(f"{count} spans of {', '.join(sorted(map(printable, fresh)))} sent")

    def _tell_wrong(self, wrong: str) -> None:
        """Once for each thing that is wrong."""
        if wrong != self._wrong:
            self._say(f"{printable(wrong)} (tried again)" if wrong else "sent again")
        self._wrong = wrong

    def _tell_stale(self) -> None:
        stale = self._reader.stale_since_unix_ms is not None
        if stale != self._stale_told:
            why = printable(self._reader.error)
            self._say(f"the log cannot be read: {why}" if stale else "the log can be read again")
        self._stale_told = stale
