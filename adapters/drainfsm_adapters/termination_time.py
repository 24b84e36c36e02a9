"""Clouds that state one instant under one key, and 404 while there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from drainfsm.core.notice import Cause, NoticeClass
from drainfsm_adapters.ledger import NONE, Observed, Reading
from drainfsm_adapters.lenient import identity_of, says_nothing
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, Reply, instant
from drainfsm_adapters.options import PollOptions
from drainfsm_adapters.polling import Platform, Signal


class TerminationTime(msgspec.Struct, frozen=True, kw_only=True):
    """The key, how to get it, and how the cloud writes an instant."""

    get: Callable[[str], Awaitable[Reply]]
    path: str
    parse: Callable[[str], int]

    def platform(self, source: str, client: MetadataClient, options: PollOptions) -> Platform:
        signal = Signal(
            name="termination-time",
            read=self.read,
            poll_s=options.poll_s,
            unknown_s=options.unknown_s,
        )
        return Platform(source=source, client=client, name=self.name, signals=(signal,))

    async def name(self) -> str:
        """Raises: NoAnswerError: the instance's id cannot be read."""
        reply = await self.get("/latest/meta-data/instance-id")
        if reply.status != 200:
            raise NoAnswerError(f"instance-id is answered {reply.status}")
        return identity_of(reply.text, what="instance-id")

    async def read(self) -> Reading:
        """Raises: NoAnswerError: the key cannot be read, or holds no instant."""
        reply = await self.get(self.path)
        if reply.status == 404:
            return NONE
        if reply.status != 200:
            raise NoAnswerError(f"termination-time is answered {reply.status}")
        if says_nothing(reply.text):
            return NONE
        observed = Observed(
            key="spot",
            tag=hashlib.sha256(reply.body).hexdigest()[:12],
            cause=Cause.SPOT_INTERRUPTION,
            notice_class=NoticeClass.HARD,
            stated_unix_ms=instant(self.parse, reply.text),
            detail=f"terminate at {reply.text}",
        )
        return Reading(events=(observed,))
