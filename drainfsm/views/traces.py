"""Drains as OpenTelemetry traces: one trace a drain, one span a phase, sent over OTLP.

Ids follow from the drain's own, so that a drain that is sent twice is the same trace, and log
messages (``trace_id``) lead to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Collection, Iterator, Sequence

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from drainfsm.core.text import printable
from drainfsm.core.trace import trace_id
from drainfsm.errors import DrainfsmError
from drainfsm.version import __version__
from drainfsm.views.attempts import GOOD
from drainfsm.views.postmortem import Postmortem

NS_PER_MS = 1_000_000
CREDENTIALS = "_CREDENTIAL_PROVIDER"
"""What variables end with that name one to the exporter."""

SPANS_MAX = 512
"""Of one request: collectors refuse what is too large."""


class TraceExportError(DrainfsmError):
    """No collector took the traces."""


def send(found: Sequence[Postmortem], *, drain_ids: Collection[str] | None = None) -> int:
    """To where the standard ``OTEL_EXPORTER_OTLP_…`` variables say; returns how many spans.
    ``found``: all drains of a job; ``drain_ids``: those that are sent (None: all).

    Raises:
        TraceExportError: they were not taken.
    """
    spans = list(spans_of(found, drain_ids=drain_ids))
    exporter = OTLPSpanExporter(session=_session())
    try:
        for first in range(0, len(spans), SPANS_MAX):
            part = spans[first : first + SPANS_MAX]
            with _complaints() as complaints:
                taken = exporter.export(part) is SpanExportResult.SUCCESS
            if not taken:
                why = printable(next(iter(complaints), "no reason was given"), chars_max=300)
                raise TraceExportError(
                    f"the traces were not taken: {why}; is OTEL_EXPORTER_OTLP_ENDPOINT an "
                    "OTLP/HTTP endpoint?"
                )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return len(spans)


def _session() -> requests.Session | None:
    """The exporter takes the answer of whoever sends it elsewhere for success, and does not go
    there. None: the exporter has one that shows who we are."""
    if any(name.endswith(CREDENTIALS) and os.environ[name] for name in os.environ):
        return None
    made = requests.Session()
    made.hooks["response"].append(_refuse_elsewhere)
    return made


def _refuse_elsewhere(answer: requests.Response, *_: object, **__: object) -> None:
    if 300 <= answer.status_code < 400:
        where = printable(answer.headers.get("location", "another address"))
        raise requests.exceptions.InvalidURL(f"HTTP {answer.status_code}, sent on to {where}")


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextlib.contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the exporter logs, which says why it failed, instead of in the log."""
    logger, handler = logging.getLogger(OTLPSpanExporter.__module__), _Complaints()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


def spans_of(
    found: Sequence[Postmortem], *, drain_ids: Collection[str] | None = None
) -> Iterator[ReadableSpan]:
    """Of drains that are over; of a job in the order of its log."""
    resource = Resource.create(
        {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "drainfsm"}
    )
    for number, one in enumerate(found):
        if not is_over(one) or (drain_ids is not None and one.drain_id not in drain_ids):
            continue
        yield _drain(one, resource, list(_links(found, number)))
        yield from _phases(one, resource)


def is_over(one: Postmortem) -> bool:
    """It can be sent: it changes no more."""
    return one.outcome != "open"


def ended_unix_ms(one: Postmortem) -> int:
    """Its last milestone; a drain that was lost at once has none but its beginning."""
    return one.opened_unix_ms + (one.phases[-1].to_ms if one.phases else 0)


def _context(drain_id: str, span: str = "") -> SpanContext:
    span_id = hashlib.sha256(f"{drain_id} {span}".encode()).hexdigest()[:16]
    return SpanContext(
        trace_id=int(trace_id(drain_id), 16),
        span_id=int(span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _links(found: Sequence[Postmortem], number: int) -> Iterator[Link]:
    """To the drains of the job before and after this one, usually of the neighbouring attempts."""
    own = found[number]
    for at, relation in ((number - 1, "before"), (number + 1, "after")):
        if 0 <= at < len(found) and found[at].job_id == own.job_id:
            yield Link(_context(found[at].drain_id), {"drainfsm.relation": relation})


def _drain(one: Postmortem, resource: Resource, links: list[Link]) -> ReadableSpan:
    attributes: dict[str, str | int] = {
        "drainfsm.job_id": one.job_id,
        "drainfsm.epoch": one.epoch,
        "drainfsm.drain_id": one.drain_id,
        "drainfsm.outcome": one.outcome,
        "drainfsm.cause": printable(one.cause),
    }
    if one.remaining_ms is not None:
        attributes["drainfsm.remaining_ms"] = one.remaining_ms
    if one.lost.steps is not None:
        attributes["drainfsm.steps_lost"] = one.lost.steps
    good = one.outcome in GOOD and (one.remaining_ms or 0) >= 0
    return ReadableSpan(
        name="drain",
        context=_context(one.drain_id),
        resource=resource,
        attributes=attributes,
        events=tuple(_events(one)),
        links=links,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.OK) if good else Status(StatusCode.ERROR, one.outcome),
        start_time=one.opened_unix_ms * NS_PER_MS,
        end_time=ended_unix_ms(one) * NS_PER_MS,
        instrumentation_scope=InstrumentationScope("drainfsm", __version__),
    )


def _events(one: Postmortem) -> Iterator[SpanEvent]:
    """Notices, moves of the deadline, decisions."""
    said: list[tuple[int, str, dict[str, str | int]]] = [
        (
            notice.at_ms,
            "notice",
            {"identity": printable(notice.identity), "deadline_ms": notice.deadline_ms},
        )
        for notice in one.notices
    ]
    said += [(move.at_ms, "deadline", {"deadline_ms": move.deadline_ms}) for move in one.deadlines]
    said += [
        (
            decision.at_ms,
            decision.kind,
            {
                "needed_ms": decision.recorded.needed_ms,
                "remaining_ms": decision.recorded.remaining_ms,
                "reason": printable(decision.reason),
            },
        )
        for decision in one.decisions
    ]
    for at_ms, name, attributes in sorted(said, key=lambda event: event[0]):
        yield SpanEvent(name, attributes, (one.opened_unix_ms + at_ms) * NS_PER_MS)


def _phases(one: Postmortem, resource: Resource) -> Iterator[ReadableSpan]:
    for phase in one.phases:
        yield ReadableSpan(
            name=phase.name,
            context=_context(one.drain_id, phase.name),
            parent=_context(one.drain_id),
            resource=resource,
            attributes={"drainfsm.drain_id": one.drain_id},
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET),
            start_time=(one.opened_unix_ms + phase.from_ms) * NS_PER_MS,
            end_time=(one.opened_unix_ms + phase.to_ms) * NS_PER_MS,
            instrumentation_scope=InstrumentationScope("drainfsm", __version__),
        )
