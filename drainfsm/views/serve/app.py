"""The addresses of the dashboard. All are read-only."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from drainfsm.core.text import printable
from drainfsm.errors import ConfigError, DrainfsmError
from drainfsm.views.history import History
from drainfsm.views.postmortem import Postmortem, postmortems
from drainfsm.views.replay import replay_job, select_drain
from drainfsm.views.serve.access import Access, Gate
from drainfsm.views.serve.hub import Hub, encoder
from drainfsm.views.serve.pages import drain_page, fleet_page, job_page, problem_page
from drainfsm.views.table import describe
from drainfsm.views.what_if import OtherSettings, parse_settings

STATIC = Path(__file__).parent / "static"
KEPT_HISTORIES = 4
READING_MAX = 2
LINES_MAX = 5_000
TEXT_MAX = 1_000
Load = Callable[[str], History]


class Number(IntegerConvertor):
    """Of digits that it is no work to read."""

    regex = "[0-9]{1,18}"


register_url_convertor("number", Number())


class ReplayMoment(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a drain, for the scrubber."""

    at_ms: int
    """Since the first of them."""

    kind: str
    phase: str
    deadline_ms: int | None
    outcome: str
    text: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    moments: tuple[ReplayMoment, ...]


class Histories:
    """Whole logs of jobs, read when somebody asks; few at once, and the last ones are kept."""

    def __init__(self, load: Load, hub: Hub) -> None:
        self._load = load
        self._hub = hub
        self._reading = asyncio.Semaphore(READING_MAX)
        self._kept: OrderedDict[str, tuple[int, History]] = OrderedDict()

    async def of(self, job_id: str) -> History:
        """Raises: DrainfsmError: it cannot be read."""
        job = self._hub.reader.projection.jobs.get(job_id)
        version = -1 if job is None else job.version
        async with self._reading:
            kept = self._kept.get(job_id)
            if kept is not None and kept[0] == version:
                return kept[1]
            history = await asyncio.to_thread(self._load, job_id)
            self._kept[job_id] = (version, history)
            while len(self._kept) > KEPT_HISTORIES:
                self._kept.popitem(last=False)
            return history


class Dashboard:
    def __init__(self, hub: Hub, load: Load) -> None:
        self._hub = hub
        self._histories = Histories(load, hub)

    async def fleet(self, request: Request) -> Response:
        return HTMLResponse(fleet_page())

    async def job(self, request: Request) -> Response:
        return HTMLResponse(job_page(request.path_params["job"]))

    async def events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._hub.full:
            return Response("too many viewers\n", 503, {"retry-after": "5"})
        job_id = request.query_params.get("job")
        return StreamingResponse(
            self._hub.messages(job_id),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def fleet_json(self, request: Request) -> Response:
        return _json(self._hub.fleet())

    async def job_json(self, request: Request) -> Response:
        found = self._hub.detail(request.path_params["job"])
        return _json(found) if found is not None else _json_problem("no such job", 404)

    async def drain(self, request: Request) -> Response:
        what_if, settings, problem = request.query_params.get("what_if", ""), None, ""
        if what_if:
            try:
                settings = parse_settings(what_if)
            except ConfigError as error:
                problem = str(error)
        try:
            found = await self._postmortem(request, settings)
        except DrainfsmError as error:
            told = f"The log cannot be read now: {error}"
            return HTMLResponse(problem_page("No log", told), 503)
        if found is None:
            told = "This log has no such drain."
            return HTMLResponse(problem_page("No such drain", told), 404)
        number = request.path_params["number"]
        page = drain_page(found, what_if=what_if, problem=problem, number=number)
        return HTMLResponse(page, 400 if problem else 200)

    async def _postmortem(
        self, request: Request, settings: OtherSettings | None
    ) -> Postmortem | None:
        job_id, epoch = request.path_params["job"], request.path_params["epoch"]
        history = await self._histories.of(job_id)
        found = await asyncio.to_thread(
            lambda: postmortems(history.logs, epoch=epoch, what_if=settings)
        )
        return _numbered(found, request.path_params["number"])

    async def replay(self, request: Request) -> Response:
        job_id, epoch = request.path_params["job"], request.path_params["epoch"]
        try:
            history = await self._histories.of(job_id)
        except DrainfsmError as error:
            return _json_problem(str(error), 503)
        made = await asyncio.to_thread(_replayed, history, epoch, request.path_params["number"])
        return _json(made) if made is not None else _json_problem("no such drain", 404)

    async def health(self, request: Request) -> Response:
        """503: the log cannot be reached."""
        feed = self._hub.feed()
        return _json(feed, 200 if feed.stale_since_unix_ms is None else 503)


def _numbered(found: Sequence[Postmortem], number: int) -> Postmortem | None:
    return found[number - 1] if 0 < number <= len(found) else None


def _replayed(history: History, epoch: int, number: int) -> Replayed | None:
    logs = [log for log in history.logs if log.epoch == epoch]
    for replay in replay_job(logs):
        if 0 < number <= len(replay.final.drains):
            lines = select_drain(replay, replay.final.drains[number - 1]).lines[:LINES_MAX]
            began = lines[0].at_unix_ms
            return Replayed(
                moments=tuple(
                    ReplayMoment(
                        at_ms=line.at_unix_ms - began,
                        kind=printable(line.kind),
                        phase=line.phase.value,
                        deadline_ms=None
                        if line.deadline_unix_ms is None
                        else line.deadline_unix_ms - began,
                        outcome=line.outcome,
                        text=printable(describe(line.event), chars_max=TEXT_MAX),
                    )
                    for line in lines
                )
            )
    return None


def _json(value: msgspec.Struct, code: int = 200) -> Response:
    return Response(encoder.encode(value), code, media_type="application/json")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    error: str


def _json_problem(error: str, code: int) -> Response:
    return _json(Problem(error=printable(error)), code)


def _metrics_route(hub: Hub) -> list[Route]:
    """They are there only with prometheus-client; without, it is said."""
    try:
        from prometheus_client import generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

        from drainfsm.views.metrics import Collected, LogCollector
    except ImportError:

        async def missing(request: Request) -> Response:
            told = (
                "prometheus-client is missing: install it with `pip install 'drainfsm[metrics]'`\n"
            )
            return Response(told, 501, media_type="text/plain")

        return [Route("/metrics", missing)]
    reader = hub.reader
    collector = LogCollector(lambda: reader.projection, clock=reader.clock, together=True)

    async def metrics(request: Request) -> Response:
        found = Collected(collector.collect())  # here, where nothing changes the projection
        text = await asyncio.to_thread(generate_latest, found)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [Route("/metrics", metrics)]


def make_app(hub: Hub, load: Load, access: Access) -> Starlette:
    """``load``: the whole log of a job."""
    pages = Dashboard(hub, load)

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        running = asyncio.ensure_future(hub.run())
        yield
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    return Starlette(
        routes=[
            Route("/", pages.fleet),
            Route("/jobs/{job}", pages.job),
            Route("/jobs/{job}/{epoch:number}/{number:number}", pages.drain),
            Route("/events", pages.events),
            Route("/api/fleet", pages.fleet_json),
            Route("/api/jobs/{job}", pages.job_json),
            Route("/api/jobs/{job}/{epoch:number}/{number:number}/replay", pages.replay),
            Route("/healthz", pages.health),
            *_metrics_route(hub),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Gate, access=access)],
        lifespan=life,
    )
