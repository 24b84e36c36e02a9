"""Drains as traces, taken by a receiver that reads OTLP with OpenTelemetry's own messages."""

from __future__ import annotations

import contextlib
import gzip
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.events import DrainCancelled
from drainfsm.core.inputs import ReportExited
from drainfsm.core.trace import trace_id
from drainfsm.log.embedded import EmbeddedServer
from drainfsm.testing.scenario import Scenario
from drainfsm.views.history import read_file
from drainfsm_kit.shipping import ship

HISTORY = (
    Path(__file__).parents[1] / "replay/histories/notify_two_nodes_cancelled_then_exited.jsonl"
)
YEAR_MS = 365 * 24 * 3_600_000


class Receiver(ThreadingHTTPServer):
    """Keeps what was sent, and answers with ``code``."""

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.code = 200
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.server.headers.append({key.lower(): text for key, text in self.headers.items()})
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_drain_is_a_trace_and_a_phase_a_span(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=training")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    assert main(["export", "--file", str(HISTORY), "--otlp"]) == 0
    assert "of 2 drains sent" in capsys.readouterr().err
    assert receiver.headers[0]["x-tenant"] == "training"
    attributes = receiver.requests[0].resource_spans[0].resource.attributes
    resource = {one.key: one.value.string_value for one in attributes}
    assert resource["service.name"] == "drainfsm"
    assert resource["deployment.environment"] == "test"
    drains = [span for span in receiver.spans if not span.parent_span_id]
    assert [span.name for span in drains] == ["drain", "drain"]
    for drain in drains:
        about = {one.key: one.value.string_value for one in drain.attributes}
        assert drain.trace_id.hex() == trace_id(about["drainfsm.drain_id"])
        phases = [span for span in receiver.spans if span.parent_span_id == drain.span_id]
        assert {span.trace_id for span in phases} <= {drain.trace_id}
        assert all(
            drain.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            for span in phases
        )
    assert [link.trace_id for link in drains[0].links] == [drains[1].trace_id]
    assert [link.trace_id for link in drains[1].links] == [drains[0].trace_id]
    exited = [span.name for span in receiver.spans if span.parent_span_id == drains[1].span_id]
    assert exited[-1] == "exited"
    assert "notice" in [event.name for event in drains[1].events]


def test_what_is_sent_twice_is_the_same_trace(receiver: Receiver) -> None:
    for _ in range(2):
        assert main(["export", "--file", str(HISTORY), "--otlp"]) == 0
    first, again = receiver.requests
    assert first == again


def test_a_drain_that_is_open_is_not_sent(
    receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_lines(Scenario().saving(in_ms=60_000).history))
    assert main(["export", "--file", str(path), "--otlp"]) == 0
    assert receiver.requests == []
    assert "0 spans" in capsys.readouterr().err


def test_a_collector_that_does_not_take_them_is_an_error(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.code = 400
    assert main(["export", "--file", str(HISTORY), "--otlp"]) == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in capsys.readouterr().err


def test_who_sends_them_elsewhere_has_not_taken_them(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a proxy does that wants https."""
    receiver.code = 302
    assert main(["export", "--file", str(HISTORY), "--otlp"]) == 1
    assert "HTTP 302, sent on to another address" in capsys.readouterr().err


# --- followed -----------------------------------------------------------------------------------


@contextlib.contextmanager
def following(*argv: str) -> Iterator[Callable[[str], list[str]]]:
    """``export --otlp --follow`` as a process, and what it has said once it says a text."""
    process = subprocess.Popen(
        [sys.executable, "-m", "drainfsm", "export", "--otlp", "--follow", *argv],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []

    def until(text: str) -> list[str]:
        for line in process.stderr or ():
            said.append(line)
            if text in line:
                return said
        raise AssertionError(f"it ended without {text!r}: {said}")

    try:
        yield until
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def drain_ids(receiver: Receiver) -> list[str]:
    return [
        one.value.string_value
        for span in receiver.spans
        if not span.parent_span_id
        for one in span.attributes
        if one.key == "drainfsm.drain_id"
    ]


def test_a_live_stream_is_followed_into_a_collector_that_comes_and_goes(
    receiver: Receiver, nats_server: EmbeddedServer
) -> None:
    job = f"job-{secrets.token_hex(4)}"
    logs = [
        replace(log, job_id=job, records=tuple(replace(one, job_id=job) for one in log.records))
        for log in read_file(HISTORY).logs
    ]
    assert len(logs) == 1
    (log,) = logs
    over = next(
        number
        for number, record in enumerate(log.records, 1)
        if any(isinstance(event, DrainCancelled) for event in record.events)
    )
    ship(nats_server.url, [replace(log, records=log.records[:over])])
    with following("--job", job, "--nats", nats_server.url) as until:
        until("spans of ")
        assert drain_ids(receiver) == [drain_ids(receiver)[0]]
        receiver.code = 400
        ship(nats_server.url, [replace(log, records=log.records[over:])])
        until("(tried again)")
        receiver.code = 200
        until("spans of ")
    assert len(set(drain_ids(receiver))) == 2


def test_only_drains_that_ended_since_then_are_sent(receiver: Receiver, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(HISTORY.read_bytes())
    with following("--file", str(path), "--since", "2100-01-01") as until:
        scenario = Scenario(job_id="later").wait(100 * YEAR_MS)
        scenario.when(scenario.notice(in_ms=10_000))
        scenario.when(ReportExited(exit_code=75, nodes=()))
        with path.open("ab") as file:
            file.write(encode_lines(scenario.history))
        until("later/1/1")
    assert drain_ids(receiver) == ["later/1/1"]


@pytest.mark.parametrize(
    "argv",
    [
        ("-o", "x", "--follow"),
        ("--otlp", "--follow", "--epoch", "1"),
        ("--otlp", "--since", "7d"),
        ("--otlp", "--follow", "--since", "soon"),
    ],
)
def test_what_cannot_be_followed_is_said(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--file", str(HISTORY), *argv]) == 2
    assert "--follow" in capsys.readouterr().err or "--since" in argv
