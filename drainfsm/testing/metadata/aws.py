"""The instance metadata service of EC2, version 2: no token, no answer."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from drainfsm.testing.metadata.server import NOT_FOUND, MetadataServer, Request, Response

TOKEN = "x-aws-ec2-metadata-token"
TTL = f"{TOKEN}-ttl-seconds"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AwsMetadataServer(MetadataServer):
    """Tokens with a life time, 404 for what is not there, JSON and text where EC2 has them.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    """

    variable = "AWS_EC2_METADATA_SERVICE_ENDPOINT"

    def __init__(
        self, *, clock_ahead_ms: int = 0, port: int = 0, token_ttl_s_max: int = 21_600
    ) -> None:
        super().__init__(clock_ahead_ms=clock_ahead_ms, port=port)
        self.refused_count = 0
        """Requests that were answered 401."""

        self.stated_ttl: str | None = None
        """The lifetime that the answer to a token request states; None: the true one."""

        self._token_ttl_s_max = token_ttl_s_max
        self._tokens: dict[str, int] = {}
        self._hop_limited = False
        self._slide_ms: int | None = None
        self._keys = {
            "instance-id": "i-0123456789abcdef0",
            "instance-life-cycle": "spot",
            "events/maintenance/scheduled": "[]",
            "autoscaling/target-lifecycle-state": "InService",
        }
        self._scheduled: dict[str, dict[str, str]] = {}

    # --- what happens to the instance -----------------------------------------------------------

    def interrupt(self, *, in_ms: int, action: str = "terminate", slides: bool = False) -> int:
        """The notice of a Spot interruption; returns its instant by the agent's clock.

        ``slides``: the instant is ``in_ms`` from each request, as Amazon's own mock has it.
        """
        with self.changed:
            self._slide_ms = in_ms if slides else None
            return self._state_interruption(action, in_ms)

    def _state_interruption(self, action: str, in_ms: int) -> int:
        at_unix_ms = self.now_unix_ms() + in_ms
        text = rfc3339(at_unix_ms)
        body = msgspec.json.encode({"action": action, "time": text}).decode()
        self._keys["spot/instance-action"] = body
        if action == "terminate":
            self._keys["spot/termination-time"] = text
        return at_unix_ms // 1_000 * 1_000 - self.clock_ahead_ms

    def recommend_rebalance(self) -> None:
        noticed = rfc3339(self.now_unix_ms())
        with self.changed:
            self._keys["events/recommendations/rebalance"] = f'{{"noticeTime":"{noticed}"}}'

    def schedule(
        self, event_id: str, *, in_ms: int, code: str = "instance-stop", state: str = "active"
    ) -> int:
        """A scheduled event, or another state of it; returns its instant by the agent's clock."""
        at_unix_ms = self.now_unix_ms() + in_ms
        event = {
            "NotBefore": http_date_without_weekday(at_unix_ms),
            "NotAfter": http_date_without_weekday(at_unix_ms + 7_200_000),
            "NotBeforeDeadline": http_date_without_weekday(at_unix_ms + 604_800_000),
            "Code": code,
            "Description": "The instance is running on degraded hardware",
            "EventId": event_id,
            "State": state,
        }
        with self.changed:
            self._scheduled[event_id] = event
            self._write_scheduled()
        return at_unix_ms // 1_000 * 1_000 - self.clock_ahead_ms

    def settle(self, event_id: str, state: str) -> None:
        """``canceled`` or ``completed``: it stays in the list for a while."""
        with self.changed:
            self._scheduled[event_id] = {**self._scheduled[event_id], "State": state}
            self._write_scheduled()

    def forget(self, event_id: str) -> None:
        with self.changed:
            del self._scheduled[event_id]
            self._write_scheduled()

    def _write_scheduled(self) -> None:
        events = list(self._scheduled.values())
        self._keys["events/maintenance/scheduled"] = msgspec.json.encode(events).decode()

    def put(self, key: str, value: str | None) -> None:
        """Any key under ``/latest/meta-data/``; None: it is not there."""
        with self.changed:
            self._keys.pop(key, None)
            if value is not None:
                self._keys[key] = value

    def value(self, key: str) -> str:
        with self.changed:
            return self._keys[key]

    # --- how the service is set up --------------------------------------------------------------

    def limit_hops(self) -> None:
        """The answer to the token request gets lost on its way: a container, and a hop limit of
        1."""
        with self.changed:
            self._hop_limited = True

    def revoke_tokens(self) -> None:
        with self.changed:
            self._tokens.clear()

    # --- answers --------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        if request.path == "/latest/api/token":
            return self._token(request)
        with self.changed:
            alive_until = self._tokens.get(request.headers.get(TOKEN, ""), 0)
            if self.now_unix_ms() >= alive_until:
                self.refused_count += 1
                return Response(status=401, body=b"<title>401 - Unauthorized</title>")
            key = request.path.removeprefix("/latest/meta-data/")
            if key == "spot/instance-action" and self._slide_ms is not None:
                self._state_interruption("terminate", self._slide_ms)
            value = self._keys.get(key)
        if value is None or request.method != "GET":
            return NOT_FOUND
        return Response(body=value.encode(), headers={"Server": "EC2ws"})

    def _token(self, request: Request) -> Response:
        stated = request.headers.get(TTL, "")
        if request.method != "PUT":
            return Response(status=405)
        if "x-forwarded-for" in request.headers:
            return Response(status=403)
        if not stated.isdigit() or not 1 <= int(stated) <= 21_600:
            return Response(status=400)
        with self.changed:
            if self._hop_limited:
                self.changed.wait_for(lambda: self.stopping)
            ttl_s = min(int(stated), self._token_ttl_s_max)
            token = secrets.token_urlsafe(40)
            self._tokens[token] = self.now_unix_ms() + ttl_s * 1_000
        said = str(ttl_s) if self.stated_ttl is None else self.stated_ttl
        return Response(body=token.encode(), headers={TTL: said, "Server": "EC2ws"})


def rfc3339(unix_ms: int) -> str:
    """To the second, as the clouds state it."""
    return (EPOCH + timedelta(seconds=unix_ms // 1_000)).strftime("%Y-%m-%dT%H:%M:%SZ")


def http_date_without_weekday(unix_ms: int) -> str:
    instant = EPOCH + timedelta(seconds=unix_ms // 1_000)
    return f"{instant.day} {instant.strftime('%b %Y %H:%M:%S')} GMT"
