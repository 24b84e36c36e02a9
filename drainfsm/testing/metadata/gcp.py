"""The metadata server of Compute Engine: ETags and ``wait_for_change``."""

from __future__ import annotations

import hashlib

import msgspec

from drainfsm.testing.metadata.aws import rfc3339
from drainfsm.testing.metadata.server import MetadataServer, Request, Response

ROOT = "/computeMetadata/v1/instance/"
FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
NO_NOTICE_YET = '{"error":"no notifications have been received yet, try again later"}'


class GcpMetadataServer(MetadataServer):
    """Values that can be waited for. https://docs.cloud.google.com/compute/docs/metadata"""

    variable = "GCE_METADATA_HOST"

    def __init__(self, *, clock_ahead_ms: int = 0, port: int = 0) -> None:
        super().__init__(clock_ahead_ms=clock_ahead_ms, port=port)
        self._spurious_count = 0
        self._values: dict[str, str] = {
            "id": "4520031799277581759",
            "preempted": "FALSE",
            "maintenance-event": "NONE",
            "upcoming-maintenance": "NONE",
            "machine-type": "projects/123/machineTypes/n2-standard-8",
        }

    @property
    def endpoint(self) -> str:
        return self.url.removeprefix("http://")

    # --- what happens to the instance -----------------------------------------------------------

    def put(self, key: str, value: str | None) -> None:
        """Any key under ``instance/``; None: it is not there (404)."""
        with self.changed:
            self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            self.changed.notify_all()

    def preempt(self) -> int:
        """Returns the instant by the agent's clock."""
        self.put("preempted", "TRUE")
        return self.now_unix_ms() - self.clock_ahead_ms

    def plan_maintenance(self, *, in_ms: int, spelling: str = "snake") -> int:
        """A window; returns its start by the agent's clock."""
        at_unix_ms = self.now_unix_ms() + in_ms
        start, end = rfc3339(at_unix_ms), rfc3339(at_unix_ms + 14_400_000)
        times = (
            {"window_start_time": start, "window_end_time": end}
            if spelling == "snake"
            else {"windowStartTime": start, "windowEndTime": end}
        )
        window = {
            "can_reschedule": "true",
            "latest_window_start_time": rfc3339(at_unix_ms + 345_600_000),
            "maintenance_status": "PENDING",
            "maintenance_reasons": ["PLANNED_UPDATE"],
            "type": "SCHEDULED",
            **times,
        }
        self.put("upcoming-maintenance", msgspec.json.encode(window).decode())
        return at_unix_ms // 1_000 * 1_000 - self.clock_ahead_ms

    def wake_for_nothing(self, *, count: int) -> None:
        """The next long polls return at once with the value unchanged."""
        with self.changed:
            self._spurious_count = count
            self.changed.notify_all()

    def stop_gracefully(self) -> int:
        """A stop with a graceful shutdown; returns when it was ordered, by the agent's clock."""
        self.put("shutdown-details/stop-state", "PENDING_STOP")
        return self.now_unix_ms() - self.clock_ahead_ms

    # --- answers --------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        if request.headers.get("metadata-flavor") != "Google":
            return Response(status=403, headers=FLAVOR)
        if "x-forwarded-for" in request.headers:
            return Response(status=403, headers=FLAVOR)
        key = request.path.removeprefix(ROOT)
        with self.changed:
            if request.query.get("wait_for_change") == "true":
                self._wait(key, request.query)
            value = self._values.get(key)
        if value is None or request.method != "GET":
            return Response(status=404, headers=FLAVOR)
        return Response(body=value.encode(), headers={**FLAVOR, "ETag": etag(value)})

    def _wait(self, key: str, query: dict[str, str]) -> None:
        """Until the value is another than the one that the client has, or its time is up."""
        has = query.get("last_etag") or etag(self._values.get(key, ""))
        timeout_s = float(query.get("timeout_sec") or 3_600)

        def over() -> bool:
            if self._spurious_count > 0:
                self._spurious_count -= 1
                return True
            failing = self.fault_for(f"{ROOT}{key}") is not None
            return self.stopping or failing or etag(self._values.get(key, "")) != has

        self.changed.wait_for(over, timeout_s)


def etag(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:16]
