"""A connection to a NATS server. Once it was up, it is restored for ever."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from drainfsm.core.backoff import backoff_s
from drainfsm.core.foreign import read_json
from drainfsm.errors import BrokerError, RecordRefusedError

CONNECT_S = 2.0
RECONNECT_WAIT_S, RECONNECT_WAIT_S_MAX = 0.25, 5.0
"""Between two tries, ever longer: a server may be away for the whole of a job."""

PING_S, PINGS_OUTSTANDING_MAX = 5, 2
"""A peer that vanished is noticed after 15 s, not after minutes."""

REQUEST_S = 5.0
CLOSE_S = 2.0

T = TypeVar("T")
Report = Callable[[str], None]


class Link:
    """nats-py with settings for a log, and its errors as ``BrokerError``."""

    def __init__(self, url: str, *, on_error: Report | None = None) -> None:
        self.url = url
        self.client = Client()
        self.last_error = ""
        self.reconnect_hooks: list[Callable[[], None]] = []
        self._tries = 0
        """In vain, since the server was there."""

        self._on_error = on_error
        self._opening = False
        self._calls: set[asyncio.Task[Msg]] = set()
        self._dropped: set[asyncio.Task[Msg]] = set()

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
            BrokerError: no server answers in time, or it refuses the credentials.
        """
        user, password, token = _credentials(self.url)
        before, self._opening = _cancellations(), True
        try:
            async with asyncio.timeout(timeout_s):
                await self.client.connect(
                    self.url.split(","),
                    error_cb=self._heard,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    name="drainfsm",
                    user=user,
                    password=password,
                    token=token,
                    connect_timeout=max(1, int(timeout_s)),
                    reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # a float is fine
                    max_reconnect_attempts=-1,
                    ping_interval=PING_S,
                    max_outstanding_pings=PINGS_OUTSTANDING_MAX,
                )
                if _cancellations() > before:
                    raise asyncio.CancelledError
            self._tried(0)
        except (TimeoutError, OSError, ValueError, nats.errors.Error) as error:
            await self.close()
            why = self.last_error or f"{error}" or "it does not answer"
            raise BrokerError(f"cannot use the NATS server {public(self.url)}: {why}") from error
        except BaseException:
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
                f"not connected to the NATS server {public(self.url)}: {self.last_error}"
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
        self._calls.add(task)
        before = _cancellations()
        try:
            message = await task
        except asyncio.CancelledError:
            if task not in self._dropped or _cancellations() > before:
                raise
            raise BrokerError(f"the connection was lost before {subject} was answered") from None
        finally:
            self._calls.discard(task)
            self._dropped.discard(task)
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
        """What no call is told: a lost connection, a denied permission."""
        self.last_error = f"{error}".strip() or type(error).__name__
        if not self.client.is_connected:
            self._tried(self._tries + 1)
        if self._opening and "authorization" in self.last_error.lower():
            raise BrokerError(  # nats-py would ask again with the same credentials
                f"the NATS server {public(self.url)} refuses the credentials: {self.last_error}"
            )
        if self._on_error is not None:
            self._on_error(f"NATS server {public(self.url)}: {self.last_error}")

    async def _disconnected(self) -> None:
        for task in self._calls:
            self._dropped.add(task)
            task.cancel()

    def _tried(self, tries: int) -> None:
        self._tries = tries
        wait_s = backoff_s(max(1, tries), first_s=RECONNECT_WAIT_S, longest_s=RECONNECT_WAIT_S_MAX)
        self.client.options["reconnect_time_wait"] = wait_s  # read before every try

    async def _reconnected(self) -> None:
        self._tried(0)
        for hook in self.reconnect_hooks:
            hook()


def _cancellations() -> int:
    """Of the running task, so far. nats-py waits by ``asyncio.wait_for``, which on Python 3.11
    loses a cancellation that comes in the same turn as the result."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def public(url: str) -> str:
    """The URL without its password or token."""
    return re.sub(r"(^|//|,)[^/@,]*@", r"\1", url)


def _credentials(url: str) -> tuple[str | None, str | None, str | None]:
    """User, password, token: decoded, and good for servers of the cluster that are found later."""
    first = url.split(",")[0]
    parts = urlsplit(first if "://" in first else f"nats://{first}")
    if parts.username is None:
        return None, None, None
    if parts.password is None:
        return None, None, unquote(parts.username)
    return unquote(parts.username), unquote(parts.password), None
