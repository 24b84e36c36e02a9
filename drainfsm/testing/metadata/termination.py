"""Alibaba and Tencent: one instant under one key, 404 while there is none."""

from __future__ import annotations

from datetime import timedelta

from drainfsm.testing.metadata.aws import EPOCH, rfc3339
from drainfsm.testing.metadata.server import NOT_FOUND, MetadataServer, Request, Response


class AlibabaMetadataServer(MetadataServer):
    """UTC, ISO 8601. Without session tokens, which are optional there."""

    variable = "DRAINFSM_ALIBABA_METADATA_ENDPOINT"
    key = "/latest/meta-data/instance/spot/termination-time"

    def __init__(self, *, clock_ahead_ms: int = 0, port: int = 0) -> None:
        super().__init__(clock_ahead_ms=clock_ahead_ms, port=port)
        self._stated = ""

    def interrupt(self, *, in_ms: int) -> int:
        """Returns the instant by the agent's clock."""
        at_unix_ms = self.now_unix_ms() + in_ms
        with self.changed:
            self._stated = self.written(at_unix_ms)
        return at_unix_ms // 1_000 * 1_000 - self.clock_ahead_ms

    def written(self, unix_ms: int) -> str:
        return rfc3339(unix_ms)

    def answer(self, request: Request) -> Response:
        if request.method != "GET":
            return Response(status=405)
        if request.path == "/latest/meta-data/instance-id":
            return Response(body=b"i-bp67acfmxazb4p0123456")
        with self.changed:
            if request.path != self.key or not self._stated:
                return NOT_FOUND
            return Response(body=self._stated.encode())


class TencentMetadataServer(AlibabaMetadataServer):
    """The time of UTC+8, and no zone."""

    variable = "DRAINFSM_TENCENT_METADATA_ENDPOINT"
    key = "/latest/meta-data/spot/termination-time"

    def written(self, unix_ms: int) -> str:
        east = EPOCH + timedelta(seconds=unix_ms // 1_000, hours=8)
        return east.strftime("%Y-%m-%d %H:%M:%S")
