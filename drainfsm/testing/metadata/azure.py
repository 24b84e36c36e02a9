"""Scheduled Events of Azure: a document with an incarnation, and requests to begin."""

from __future__ import annotations

import uuid
from datetime import timedelta

import msgspec

from drainfsm.testing.metadata.aws import EPOCH
from drainfsm.testing.metadata.server import NOT_FOUND, MetadataServer, Request, Response

EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"
NO_METADATA = b'{"error":"Bad request. Required metadata header not specified"}'


class AzureMetadataServer(MetadataServer):
    """https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"""

    variable = "DRAINFSM_AZURE_METADATA_ENDPOINT"

    def __init__(
        self,
        *,
        clock_ahead_ms: int = 0,
        port: int = 0,
        vm_name: str = "gpu-0",
        first_call_s: float = 0.0,
    ) -> None:
        super().__init__(clock_ahead_ms=clock_ahead_ms, port=port)
        self.vm_name = vm_name
        self.approved: list[str] = []
        """Ids of events that were let begin, in the order of the requests."""

        self._first_call_s = first_call_s
        self._incarnation = 1
        self._events: dict[str, dict[str, object]] = {}

    # --- what happens to the machines -----------------------------------------------------------

    def schedule(
        self,
        event_type: str,
        *,
        in_ms: int,
        event_id: str = "",
        resources: tuple[str, ...] = (),
        duration_s: int = -1,
    ) -> tuple[str, int]:
        """Schedule an event, or move it; returns its id and instant by the agent's clock."""
        at_unix_ms = self.now_unix_ms() + in_ms
        key = event_id or str(uuid.uuid4()).upper()
        event = {
            "EventId": key,
            "EventType": event_type,
            "ResourceType": "VirtualMachine",
            "Resources": list(resources or (self.vm_name,)),
            "EventStatus": "Scheduled",
            "NotBefore": http_date_of_a_wrong_weekday(at_unix_ms),
            "Description": "Host server is undergoing maintenance",
            "EventSource": "Platform",
            "DurationInSeconds": duration_s,
        }
        self._write(key, event)
        return key, at_unix_ms // 1_000 * 1_000 - self.clock_ahead_ms

    def change(self, event_id: str, **fields: object) -> None:
        """Some fields of it, as no page documents them."""
        self._write(event_id, {**self._events[event_id], **fields})

    def start_event(self, event_id: str) -> None:
        """It has begun, and no longer states its time."""
        event = {**self._events[event_id], "EventStatus": "Started", "NotBefore": ""}
        self._write(event_id, event)

    def fail_hardware(self) -> str:
        """Straight to Started."""
        event_id, _ = self.schedule("Reboot", in_ms=0)
        self.start_event(event_id)
        return event_id

    def remove(self, event_id: str) -> None:
        """It is over, or it was cancelled: the document does not say which."""
        self._write(event_id, None)

    def _write(self, event_id: str, event: dict[str, object] | None) -> None:
        with self.changed:
            self._events.pop(event_id, None)
            if event is not None:
                self._events[event_id] = event
            self._incarnation += 1

    def lose_events(self) -> None:
        """A document of the same incarnation that lacks its events: it contradicts itself."""
        with self.changed:
            self._events.clear()

    # --- answers --------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        if request.headers.get("metadata") != "true" or "x-forwarded-for" in request.headers:
            return Response(status=400, body=NO_METADATA)
        if "api-version" not in request.query:
            return Response(status=400, body=b'{"error":"Bad request. api-version is missing"}')
        if request.path == NAME and request.method == "GET":
            return Response(body=self.vm_name.encode())
        if request.path != EVENTS:
            return NOT_FOUND
        if request.method == "POST":
            return self._approve(request)
        with self.changed:
            delay_s, self._first_call_s = self._first_call_s, 0.0
            if delay_s:
                self.changed.wait_for(lambda: self.stopping, delay_s)
            document = {
                "DocumentIncarnation": self._incarnation,
                "Events": list(self._events.values()),
            }
        return Response(
            body=msgspec.json.encode(document), headers={"Content-Type": "application/json"}
        )

    def _approve(self, request: Request) -> Response:
        try:
            wanted = msgspec.json.decode(request.body, type=dict[str, list[dict[str, str]]])
            event_ids = [entry["EventId"] for entry in wanted["StartRequests"]]
        except (msgspec.MsgspecError, KeyError):
            return Response(status=400)
        known = [event_id for event_id in event_ids if event_id in self._events]
        if len(known) < len(event_ids):
            return Response(status=400)
        for event_id in known:
            self.approved.append(event_id)
            self.start_event(event_id)
        return Response()


def http_date_of_a_wrong_weekday(unix_ms: int) -> str:
    """As some of Azure's own samples have it."""
    instant = EPOCH + timedelta(seconds=unix_ms // 1_000, days=1)
    weekday = instant.strftime("%a")
    return f"{weekday}, {(instant - timedelta(days=1)).strftime('%d %b %Y %H:%M:%S')} GMT"
