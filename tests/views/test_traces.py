"""Drains as traces, taken by a receiver that reads OTLP with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from drainfsm.cli.main import main
from drainfsm.core.codec import encode_lines
from drainfsm.core.trace import trace_id
from drainfsm.testing.scenario import Scenario

HISTORY = (
    Path(__file__).parents[1] / "replay/histories/notify_two_nodes_cancelled_then_exited.jsonl"
)


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
