"""A connection to a NATS server. Once it was up, it is restored for ever."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from drainfsm.core.backoff import backoff_s
from drainfsm.core.foreign import read_json
from drainfsm.errors import BrokerError, ConfigError, RecordRefusedError
from drainfsm.log.server import INBOX, NO_TLS, NatsServer, public, server_at

CONNECT_S = 2.0
RECONNECT_WAIT_S, RECONNECT_WAIT_S_MAX = 0.25, 5.0
"""Between two tries, ever longer: a server may be away for the whole of a job."""

PING_S, PINGS_OUTSTANDING_MAX = 5, 2
"""A peer that vanished is noticed after 15 s, not after minutes."""

REQUEST_S = 5.0
CLOSE_S = 2.0
CANCEL_S = 0.1

_DENIED = re.compile(r"permissions violation for publish to \"([^\"]+)\"", re.IGNORECASE)

T = TypeVar("T")
Report = Callable[[str], None]


class _Client(Client):
    """nats-py goes on in the clear where a server offers no TLS, and whoever stands between can
    make that offer disappear."""

    def __init__(self, *, private: bool) -> None:
        super().__init__()
        self._private = private

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        if self._private and initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.Error(NO_TLS)
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class Link:
    """nats-py with settings for a log, and its errors as ``BrokerError``."""

    def __init__(self, server: NatsServer | str, *, on_error: Report | None = None) -> None:
        self.server = server_at(server)
        self.client: Client = _Client(private=self.server.private)
        self.last_error = ""
        self.reconnect_hooks: list[Callable[[], None]] = []
        self._tries = 0
        """In vain, since the server was there."""

        self._on_error = on_error
        self._opening = False
        self._calls: dict[asyncio.Task[Msg], str] = {}
        self._dropped: dict[asyncio.Task[Msg], str] = {}
        """Requests that get no answer any more, and why."""

    @property
    def connected(self) -> bool:
        return self.client.is_connected

    @property
    def closed(self) -> bool:
        """For good: by ``close``, or since the server refuses this client."""
        return self.client.is_closed

    async def open(self, *, timeout_s: float) -> None:
        """Connect.

        Raises:
            BrokerError: no server answers in time, it refuses the credentials, or a file of them
                will not do, now: it may be there again soon.
        """
        try:
            self.server.check()
            shown = _shown(self.server)
            tls = self.server.tls() if self.server.private else None
        except ConfigError as error:
            raise BrokerError(f"cannot use {public(self.server)}: {error}") from error
        self._opening = True
        connecting = asyncio.create_task(
            self.client.connect(
                self.server.url.split(","),
                error_cb=self._heard,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
                name="drainfsm",
                tls=tls,
                inbox_prefix=self.server.inbox_prefix or INBOX,
                connect_timeout=max(1, int(timeout_s)),
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # a float is fine
                max_reconnect_attempts=-1,
                ping_interval=PING_S,
                max_outstanding_pings=PINGS_OUTSTANDING_MAX,
                **shown,
            )
        )
        try:
            if not (await asyncio.wait({connecting}, timeout=timeout_s))[0]:
                raise TimeoutError
            connecting.result()
            self._tried(0)
        except (TimeoutError, OSError, ValueError, nats.errors.Error) as error:
            await _end(connecting)
            await self.close()
            why = self.last_error or f"{error}" or "it does not answer"
            raise BrokerError(f"cannot use the NATS server {public(self.server)}: {why}") from error
        except BaseException:
            await _end(connecting)
            await self.close()
            raise
        finally:
            self._opening = False

    async def call(
        self, subject: str, body: bytes, answer: type[T], *, headers: dict[str, str] | None = None
    ) -> T:
        """One request and its answer.

        Raises:
            BrokerError: not connected, nobody answers, or not in time.
        """
        if not self.connected:  # nats-py would keep the request, and send it at some later time
            raise BrokerError(
                f"not connected to the NATS server {public(self.server)}: {self.last_error}"
            )
        try:
            message = await self._request(subject, body, headers)
            return read_json(
                message.data,
                answer,
                lambda why: BrokerError(f"the answer to {subject} cannot be read: {why}"),
            )
        except nats.errors.NoRespondersError as error:
            raise BrokerError(
                f"nobody answers {subject}: JetStream is off or not ready, or no stream takes it"
            ) from error
        except nats.errors.MaxPayloadError as error:
            raise RecordRefusedError(
                f"a record of {len(body)} bytes is more than the server takes: raise `max_payload`"
            ) from error
        except nats.errors.TimeoutError as error:
            raise BrokerError(f"no answer to {subject} within {REQUEST_S} s") from error
        except (nats.errors.Error, OSError) as error:
            raise BrokerError(f"{subject}: {error}") from error

    async def _request(self, subject: str, body: bytes, headers: dict[str, str] | None) -> Msg:
        """nats-py's request, which ends at once when the connection is lost."""
        task = asyncio.create_task(
            self.client.request(subject, body, timeout=REQUEST_S, headers=headers)
        )
        self._calls[task] = subject
        before = _cancellations()
        try:
            message = await task
        except asyncio.CancelledError:
            if task not in self._dropped or _cancellations() > before:
                raise
            raise BrokerError(self._dropped[task]) from None
        finally:
            self._calls.pop(task, None)
            self._dropped.pop(task, None)
        if _cancellations() > before:
            raise asyncio.CancelledError
        return message

    async def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Bounded, whatever the server does."""
        closing = asyncio.create_task(self.client.close())
        done, _ = await asyncio.wait({closing}, timeout=timeout_s)
        if not done:
            closing.cancel()
        elif not closing.cancelled() and (error := closing.exception()):
            self.last_error = f"{error}"

    async def _heard(self, error: Exception) -> None:
        """What no call raises: a lost connection, a denied permission."""
        self.last_error = f"{error}".strip() or type(error).__name__
        if not self.client.is_connected:
            self._tried(self._tries + 1)
        if self._opening and "authorization" in self.last_error.lower():
            raise BrokerError(  # nats-py would ask again with the same credentials
                f"the NATS server {public(self.server)} refuses the credentials: {self.last_error}"
            )
        if self._deny(self.last_error):
            return  # the call raises it
        if self._on_error is not None:
            self._on_error(f"NATS server {public(self.server)}: {self.last_error}")

    def _deny(self, text: str) -> bool:
        """A request that the server did not let through gets no answer: end it at once."""
        found = _DENIED.search(text)
        named = found[1].lower() if found else ""  # nats-py makes it lower case
        denied = [task for task, subject in self._calls.items() if subject.lower() == named]
        for task in denied:
            self._drop(task, f"this user of the server may not publish {self._calls[task]}")
        return bool(denied)

    async def _disconnected(self) -> None:
        for task, subject in list(self._calls.items()):
            self._drop(task, f"the connection was lost before {subject} was answered")

    def _drop(self, task: asyncio.Task[Msg], why: str) -> None:
        self._dropped[task] = why
        task.cancel()

    def _tried(self, tries: int) -> None:
        self._tries = tries
        wait_s = backoff_s(max(1, tries), first_s=RECONNECT_WAIT_S, longest_s=RECONNECT_WAIT_S_MAX)
        self.client.options["reconnect_time_wait"] = wait_s  # read before every try

    async def _reconnected(self) -> None:
        self._tried(0)
        for hook in self.reconnect_hooks:
            hook()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel it until it is done: see ``_cancellations``."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_S)


def _cancellations() -> int:
    """Of the running task, so far. nats-py waits by ``asyncio.wait_for``, which on Python 3.11
    loses a cancellation that comes in the same turn as the result."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _shown(server: NatsServer) -> dict[str, Any]:
    """What nats-py is given to show who this is; it reads files at every connect."""
    if server.creds:
        return {"user_credentials": server.creds}
    if server.nkey:
        return {"nkeys_seed": server.nkey}

    def field(name: str) -> Callable[[], str]:
        return lambda: _now(server)[name]

    names = {"user": "user", "pass": "password", "auth_token": "token"}
    return {names[name]: field(name) for name in server.shown("")}


def _now(server: NatsServer) -> dict[str, str]:
    """Raises: nats.errors.Error: what nats-py takes for a failed try."""
    try:
        return server.shown("")
    except ConfigError as error:
        raise nats.errors.Error(f"{error}") from error
