"""HTTP to the API server: lightkube knows the server and the credentials, the calls are ours.

No Python client relists after a 410, notices a dead peer or says which permission is missing; so
this one hands out plain answers, and ``kubernetes_watch`` decides. HTTP/1.1: a server that wants to
drop a client closes the connection, and nothing else shares it.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError as LightkubeConfigError

from drainfsm.core.foreign import read_json
from drainfsm.errors import ConfigError
from drainfsm_adapters.kubernetes_sockets import transport_to
from drainfsm_adapters.metadata import BODY_BYTES_MAX, NoAnswerError, Reply, TimedOutError
from drainfsm_adapters.server_clock import ServerClock

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""Of which JSON is a part."""

LINE_BYTES_MAX = 8 * 1024 * 1024
"""An object has at most 1.5 MiB in etcd; more is not an event."""

DETAIL_CHARS_MAX = 400


class NoConnectionError(Exception):
    """This process was given no API server to talk to."""


class RefusedError(NoAnswerError):
    """The API server refused."""

    def __init__(self, detail: str, *, status: int, reason: str, retry_after_s: float = 0) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0


def connection_of(kubeconfig: str) -> SingleConfig:
    """The service account of the pod, or a kubeconfig.

    Raises:
        NoConnectionError: neither is there.
        ConfigError: it is damaged; says what is missing.
    """
    try:
        if kubeconfig:
            found = KubeConfig.from_file(kubeconfig)
        elif (Path(SERVICE_ACCOUNT) / "token").exists():
            found = KubeConfig.from_service_account(SERVICE_ACCOUNT)
        elif os.environ.get("KUBECONFIG"):
            found = KubeConfig.from_file(os.environ["KUBECONFIG"])
        else:
            raise NoConnectionError(
                f"no {SERVICE_ACCOUNT}/token and no KUBECONFIG: is this a pod, and is "
                "automountServiceAccountToken on? Until then only signals tell"
            )
        return _checked(found.get())
    except (ConfigError, NoConnectionError):
        raise
    except KeyError as error:
        raise ConfigError(f"kubernetes: {error} is missing from the configuration") from error
    except Exception as error:  # whatever reading a damaged file raises
        raise ConfigError(f"kubernetes: {kubeconfig or 'the configuration'}: {error}") from error


def _checked(config: SingleConfig | None) -> SingleConfig:
    if config is None:
        raise ConfigError("kubernetes: the kubeconfig names no current context")
    return config


class Api:
    """One API server, one identity. Calls raise ``NoAnswerError`` and nothing else."""

    def __init__(
        self, config: SingleConfig, *, timeout_s: float, now_unix_ms: Callable[[], int]
    ) -> None:
        """Raises: ConfigError: certificate or credentials cannot be used."""
        self.clock = ServerClock()
        self.now_unix_ms = now_unix_ms
        self._timeout_s = timeout_s
        try:
            user = config.user
            verify = (
                verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
                if user is not None
                else httpx2.create_ssl_context(verify=not config.cluster.insecure, trust_env=False)
            )
            self._auth = user_auth(user)
        except (LightkubeConfigError, OSError, ValueError, ssl.SSLError) as error:
            raise ConfigError(f"kubernetes: {error}") from error
        self._verify = verify
        self._server = config.cluster.server.rstrip("/")
        self._client: httpx2.AsyncClient | None = None

    def _opened(self) -> httpx2.AsyncClient:
        """One for the event loop that it runs on; opened with the first call."""
        if self._client is None:
            transport = transport_to(self._verify)
            self._client = httpx2.AsyncClient(
                transport=transport, auth=self._auth, trust_env=False, follow_redirects=False
            )
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Reply:
        """One call, and its answer if that is a success.

        Raises:
            RefusedError: the server refused.
            NoAnswerError: there is no answer, or it is too long.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = content_type
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        with _telling(limit_s):
            async with asyncio.timeout(limit_s):
                async with self._open(method, path, query, content, headers, limit_s) as answer:
                    sent_unix_ms, response = answer
                    data = await _body(response)
                    reply = Reply(
                        status=response.status_code,
                        headers=dict(response.headers),
                        body=data,
                        sent_unix_ms=sent_unix_ms,
                        received_unix_ms=self.now_unix_ms(),
                    )
        if not 200 <= reply.status < 300:
            raise refused(reply.status, data, reply.headers)
        return reply

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch for as long as the server sends them.

        Raises:
            RefusedError: the server refused.
            NoAnswerError: no answer, the connection broke, or nothing came for ``silence_s``.
        """
        headers = {"Accept": "application/json"}
        with _telling(silence_s):
            async with self._open("GET", path, query, None, headers, silence_s) as answer:
                _, response = answer
                if response.status_code != 200:
                    async with asyncio.timeout(self._timeout_s):
                        data = await _body(response)
                    raise refused(response.status_code, data, dict(response.headers))
                yield _lines(response)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        content: bytes | None,
        headers: dict[str, str],
        silence_s: float,
    ) -> AsyncIterator[tuple[int, httpx2.Response]]:
        connect_s = min(silence_s, self._timeout_s)
        timeout = httpx2.Timeout(connect_s, read=silence_s, pool=connect_s)
        sent_unix_ms = self.now_unix_ms()
        async with self._opened().stream(
            method,
            self._server + path,
            params=dict(query or {}),
            content=content,
            headers=headers,
            timeout=timeout,
        ) as response:
            self.clock.observe(
                response.headers.get("date", ""),
                sent_unix_ms=sent_unix_ms,
                received_unix_ms=self.now_unix_ms(),
            )
            yield sent_unix_ms, response


class _telling:  # noqa: N801 - reads as a verb
    """Turns what a broken connection raises into what it means."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case None | NoAnswerError():
                return
            case TimeoutError() | httpx2.TimeoutException():
                raise TimedOutError(
                    f"the API server said nothing for {self._limit_s:g} s"
                ) from error
            case LightkubeConfigError():
                raise NoAnswerError(f"no credentials: {error}") from error
            case httpx2.HTTPError() | httpx2.InvalidURL() | OSError() | ValueError():
                raise NoAnswerError(_broken(error)) from error


def _broken(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"the API server's certificate is not from the CA that this pod was given: {text}"
    return f"{type(error).__name__}: {text}"[:DETAIL_CHARS_MAX]


async def _body(response: httpx2.Response) -> bytes:
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if len(data) > LINE_BYTES_MAX:
            raise NoAnswerError(f"the answer has more than {LINE_BYTES_MAX} bytes")
    return bytes(data)


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """A last line without an end is torn, and dropped."""
    held = bytearray()
    async for part in response.aiter_bytes():
        held += part
        while (end := held.find(b"\n")) >= 0:
            line, held = bytes(held[:end]), held[end + 1 :]
            if line:
                yield line
        if len(held) > LINE_BYTES_MAX:
            raise NoAnswerError(f"an event has more than {LINE_BYTES_MAX} bytes")


def refused(status: int, body: bytes, headers: Mapping[str, str]) -> RefusedError:
    """A refusal, with the server's reason."""
    try:
        reply = read_json(body[:BODY_BYTES_MAX], _Status, ValueError)
    except ValueError:
        reply = _Status()
    detail = (reply.message or f"the API server answered {status}")[:DETAIL_CHARS_MAX]
    match status:
        case 401:
            detail = f"the token is expired, or of another cluster: {detail}"
        case 403:
            detail = f"a permission is missing: {detail}"
    try:
        retry_after_s = float(headers.get("retry-after", 0))
    except ValueError:
        retry_after_s = 0.0
    return RefusedError(detail, status=status, reason=reply.reason, retry_after_s=retry_after_s)
