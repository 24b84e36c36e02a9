"""Who may look: everybody on this machine, whoever has the token, or whom a proxy vouches for.

And what every answer says to browsers: nothing from elsewhere, no inline script, no frame.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drainfsm.errors import ConfigError

COOKIE = "drainfsm_token"
COOKIE_S = 30 * 86_400
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_CHARS_MIN = 16

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """``token`` and ``user_header`` empty: this machine alone."""

    host: str
    token: str = ""
    user_header: str = ""
    """That a proxy sets for those whom it has let in, and takes from all others."""

    def __post_init__(self) -> None:
        """Raises: ConfigError: others could look without being asked who they are."""
        if self.token and len(self.token) < TOKEN_CHARS_MIN:
            raise ConfigError(
                f"DRAINFSM_SERVE_TOKEN: shorter than {TOKEN_CHARS_MIN} characters; make one by "
                "`openssl rand -hex 16`"
            )
        if self.host not in LOOPBACK and not self.token and not self.user_header:
            raise ConfigError(
                f"--listen {self.host}: everybody could look: set DRAINFSM_SERVE_TOKEN, or "
                "--user-header behind a proxy that authenticates"
            )

    @property
    def open(self) -> bool:
        return not self.token and not self.user_header

    def allows(self, headers: Mapping[str, str]) -> bool:
        if self.user_header and headers.get(self.user_header.lower()):
            return True
        if self.token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() == "bearer" and self.is_token(given):
                return True
            # Those of other servers on this host come along, and need not be well formed.
            return self.is_token(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""))
        # A page of somebody else must not reach it by a name that it makes lead here.
        return self.open and _name(headers.get("host", "")) in LOOPBACK

    @property
    def cookie(self) -> str:
        """Its name, of this token alone: a host's cookies are those of all its ports."""
        return f"{COOKIE}_{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    @property
    def refusal(self) -> str:
        """What whoever is not let in can do."""
        if self.token:
            return "open ?token=…, or send `Authorization: Bearer …`"
        if self.user_header:
            return "ask by way of the proxy that says who you are"
        return (
            f"it answers to {', '.join(sorted(LOOPBACK))} alone; for other names, set "
            "DRAINFSM_SERVE_TOKEN where it runs"
        )

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.strip().encode(), self.token.encode())


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Gate:
    """Middleware: asks before anything is answered, and adds the headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """None: it may pass."""
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("read-only\n", 405, {"allow": "GET, HEAD"})
        given = _query_token(scope)
        if given and self._access.token and self._access.is_token(given):
            answer = RedirectResponse(_without_token(scope), 303)
            answer.set_cookie(
                self._access.cookie, given, max_age=COOKIE_S, httponly=True, samesite="strict"
            )
            return answer
        if self._access.allows(Headers(scope=scope)):
            return None
        scheme = {"www-authenticate": "Bearer"} if self._access.token else {}
        return PlainTextResponse(f"401: {self._access.refusal}\n", 401, scheme)


def _query_token(scope: Scope) -> str:
    query: bytes = scope["query_string"]
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]


def _without_token(scope: Scope) -> str:
    """The same address, less what histories must not keep. A path of two slashes would lead
    elsewhere."""
    query: bytes = scope["query_string"]
    others = [
        one
        for one in parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if one[0] != "token"
    ]
    path: bytes = scope["raw_path"]
    return f"/{path.decode('latin-1').lstrip('/')}" + (f"?{urlencode(others)}" if others else "")
