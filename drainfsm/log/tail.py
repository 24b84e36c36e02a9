"""New messages of the stream as they come: an ephemeral push consumer that notices every gap."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable
from typing import Protocol, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from drainfsm.core.foreign import UNREADABLE
from drainfsm.log.stream import STREAM, ConsumerReply
from drainfsm.log.wire import BrokerMessage

HEARTBEAT_S = 2
SILENCE_S_MAX = 3 * HEARTBEAT_S
INACTIVE_S = 10
"""The server forgets a consumer whose reader is gone for this long."""

READ_ONCE_S = 1
"""The same of one that reads what is there: servers have a thousand consumers at most, and a start
may look at as many attempts."""

CLOSE_S = 1.0
T = TypeVar("T")


class TailBrokenError(Exception):
    """Messages were missed, or the consumer is gone: read on from the last one that came."""


class Call(Protocol):
    def __call__(self, subject: str, body: bytes, answer: type[T], /) -> Awaitable[T]: ...


class Tail:
    """One consumer. Whatever goes wrong, it is broken: make another one after the last message."""

    def __init__(
        self, client: Client, subject: str, *, after_sequence: int, inactive_s: int = INACTIVE_S
    ) -> None:
        self._client = client
        self._subject = subject
        self._after = after_sequence
        self._inactive_s = inactive_s
        self._received = 0
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._name = f"tail-{secrets.token_hex(8)}"

    async def open(self, call: Call) -> int:
        """Create the consumer. Returns how many messages it has to deliver by now.

        Raises:
            BrokerError: it cannot be asked for.
            TailBrokenError: it was refused.
        """
        inbox = self._client.new_inbox()
        try:
            self._subscription = await self._client.subscribe(inbox, cb=self._heard)
        except nats.errors.Error as error:
            raise TailBrokenError(f"{error}") from error
        config = {
            "name": self._name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._after + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "filter_subject": self._subject,
            "replay_policy": "instant",
            "idle_heartbeat": HEARTBEAT_S * 1_000_000_000,
            "inactive_threshold": self._inactive_s * 1_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
        }
        body = msgspec.json.encode({"stream_name": STREAM, "config": config})
        path = f"$JS.API.CONSUMER.CREATE.{STREAM}.{self._name}.{self._subject}"
        reply = await call(path, body, ConsumerReply)
        if reply.error is not None:
            raise TailBrokenError(reply.error.description)
        return reply.num_pending

    async def next(self) -> BrokerMessage:
        """The next message.

        Raises:
            TailBrokenError: one was missed, or nothing comes any more, not even heartbeats.
        """
        while True:
            try:
                async with asyncio.timeout(SILENCE_S_MAX):
                    message = await self._queue.get()
            except TimeoutError:
                raise TailBrokenError("silent") from None
            if message is None:
                raise TailBrokenError("interrupted")
            try:
                if message.headers and "Status" in message.headers:
                    self._check_heartbeat(message)
                    continue
                place = message.metadata.sequence
            except (nats.errors.Error, *UNREADABLE) as error:
                raise TailBrokenError(f"the server sent an invalid message: {error}") from error
            self._received += 1
            if place.consumer != self._received:
                raise TailBrokenError(f"message {self._received} was missed")
            return BrokerMessage(place.stream, message.data, message.subject.encode())

    def interrupt(self) -> None:
        """The connection is a new one: the consumer may be gone, and messages with it."""
        self._queue.put_nowait(None)

    async def close(self) -> None:
        """The server forgets the consumer by itself: a reader that may delete its own consumer may
        delete everybody's."""
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if self._subscription is not None:
                    await self._subscription.unsubscribe()

    async def _heard(self, message: Msg) -> None:
        self._queue.put_nowait(message)

    def _check_heartbeat(self, message: Msg) -> None:
        sent = int((message.headers or {}).get("Nats-Last-Consumer", "0"))
        if sent > self._received:
            raise TailBrokenError(f"{sent} messages were sent, {self._received} came")
