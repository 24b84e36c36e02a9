"""One reader, many viewers: what has changed is encoded once, and handed to everybody.

A viewer that does not keep up loses what waits for it, and begins anew with all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable

import msgspec

from drainfsm.core.text import printable
from drainfsm.version import __version__
from drainfsm.views.projections import Projection
from drainfsm.views.serve.rows import JobDetail, JobRow, detail_of, row_of
from drainfsm.views.watch import Reader

TOGETHER_S = 0.1
"""Changes that come so close after each other are told together."""

TICK_S = 1.0
"""Between two messages about a drain that is open: what it still needs shrinks as it goes on."""

HEARTBEAT_S = 10.0
QUEUE_MAX = 64
VIEWERS_MAX = 1_000
encoder = msgspec.json.Encoder()


class FeedView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the view comes from, and how fresh it is."""

    version: str
    """Of the server: a page that is open is of the one that it was loaded from."""

    now_unix_ms: int
    source: str
    stale_since_unix_ms: int | None
    error: str
    unreadable_count: int
    unreadable: tuple[str, ...]


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs, or with ``whole`` false those that have changed."""

    whole: bool
    jobs: tuple[JobRow, ...]


class Viewer:
    """``job_id`` None: it looks at the fleet."""

    def __init__(self, job_id: str | None) -> None:
        self.job_id = job_id
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_MAX)
        self._behind = False

    def tell(self, message: bytes) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self._behind = True

    def begin_anew(self) -> None:
        """What waits for it counts no more: it needs all of it again."""
        self._behind = True
        self.tell(b": anew\n\n")

    def end(self) -> None:
        """Nothing more comes, not what waits for it either."""
        self._behind = False
        self._empty()
        self._queue.put_nowait(None)

    async def told(self) -> bytes | None:
        """The next message, once there is one; None: it is over."""
        return await self._queue.get()

    def catches_up(self) -> bool:
        """Whether it was not told everything. What waits is dropped then, for all of it anew."""
        behind = self._behind
        if behind:
            self._behind = False
            self._empty()
        return behind

    def _empty(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()


def message(event: str, value: msgspec.Struct) -> bytes:
    """A server-sent event; JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), encoder.encode(value))


class Hub:
    def __init__(self, reader: Reader, *, viewers_max: int = VIEWERS_MAX) -> None:
        self.reader = reader
        self._viewers_max = viewers_max
        self._viewers: set[Viewer] = set()
        self._versions: dict[str, int] = {}
        self._shown: Projection | None = None
        self._feed: object = None
        self._encoded: dict[str | None, bytes] = {}
        """All of the fleet (None) or of a job, until ``publish``: many may come at once."""

    @property
    def viewer_count(self) -> int:
        return len(self._viewers)

    @property
    def full(self) -> bool:
        return len(self._viewers) >= self._viewers_max

    async def run(self) -> None:
        """Until cancelled; viewers end with it."""
        reading = asyncio.ensure_future(self.reader.run())
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self.reader.changed.wait()
                self.reader.changed.clear()
                self.publish()
                await asyncio.sleep(TOGETHER_S)
                if reading.done():
                    reading.result()
        finally:
            reading.cancel()
            self.end()

    def end(self) -> None:
        """For all viewers that there are."""
        for viewer in self._viewers:
            viewer.end()

    async def messages(self, job_id: str | None) -> AsyncGenerator[bytes, None]:
        """All there is, and then what changes, for one viewer."""
        viewer = Viewer(job_id)
        self._viewers.add(viewer)
        try:
            yield b"retry: 1000\n\n" + self._whole(viewer)
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        told = await viewer.told()
                except TimeoutError:
                    told = b": still here\n\n"
                if told is None:
                    return
                if viewer.catches_up():
                    told = self._whole(viewer)
                yield told
        finally:
            self._viewers.discard(viewer)

    def feed(self) -> FeedView:
        reader = self.reader
        return FeedView(
            version=__version__,
            now_unix_ms=reader.clock(),
            source=printable(reader.public_name),
            stale_since_unix_ms=reader.stale_since_unix_ms,
            error=printable(reader.error),
            unreadable_count=reader.projection.unreadable_count,
            unreadable=tuple(printable(one) for one in reader.projection.unreadable),
        )

    def fleet(self, job_ids: Iterable[str] | None = None) -> FleetView:
        """None: all jobs."""
        now_unix_ms, jobs = self.reader.clock(), self.reader.projection.jobs
        wanted = jobs if job_ids is None else job_ids
        rows = tuple(row_of(jobs[job_id], now_unix_ms=now_unix_ms) for job_id in wanted)
        return FleetView(whole=job_ids is None, jobs=rows)

    def detail(self, job_id: str) -> JobDetail | None:
        job = self.reader.projection.jobs.get(job_id)
        return None if job is None else detail_of(job, now_unix_ms=self.reader.clock())

    def _whole(self, viewer: Viewer) -> bytes:
        job_id = viewer.job_id
        if job_id not in self._encoded:
            told = self.fleet() if job_id is None else self.detail(job_id)
            name = "fleet" if job_id is None else "job"
            self._encoded[job_id] = b"" if told is None else message(name, told)
        return message("feed", self.feed()) + self._encoded[job_id]

    def publish(self) -> None:
        """Tell viewers what has changed since the last call."""
        projection = self.reader.projection
        self._encoded.clear()
        if projection is not self._shown:  # it was read anew
            self._shown, self._versions = projection, {}
            for viewer in self._viewers:
                viewer.begin_anew()
        versions = {job_id: job.version for job_id, job in projection.jobs.items()}
        changed = [job_id for job_id in versions if self._versions.get(job_id) != versions[job_id]]
        self._versions = versions
        self._tell_feed()
        if changed and any(viewer.job_id is None for viewer in self._viewers):
            rows = message("fleet", self.fleet(changed))
            self._tell(None, rows)
        looked_at = {viewer.job_id for viewer in self._viewers} - {None}
        for job_id in looked_at & projection.jobs.keys():
            assert job_id is not None
            open_drain = projection.jobs[job_id].newest.state.phase.active
            if (job_id in changed or open_drain) and (detail := self.detail(job_id)) is not None:
                self._tell(job_id, message("job", detail))

    def _tell_feed(self) -> None:
        """When it changes: a browser counts the seconds itself."""
        feed = self.feed()
        said = msgspec.structs.replace(feed, now_unix_ms=0)
        if said != self._feed:
            self._feed = said
            for viewer in self._viewers:
                viewer.tell(message("feed", feed))

    def _tell(self, job_id: str | None, told: bytes) -> None:
        for viewer in self._viewers:
            if viewer.job_id == job_id:
                viewer.tell(told)
