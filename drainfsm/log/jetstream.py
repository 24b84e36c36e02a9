"""The shared log: one JetStream stream, one subject an attempt, one message a record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator

import msgspec

from drainfsm.core.codec import decode, encode
from drainfsm.core.records import Record, subject_of, subjects_of
from drainfsm.core.text import printable
from drainfsm.errors import BrokerError, RecordRefusedError, RecordUnreadableError, StaleWriterError
from drainfsm.log import stream as api
from drainfsm.log.link import CLOSE_S, CONNECT_S, Link, Report
from drainfsm.log.server import NatsServer
from drainfsm.log.tail import READ_ONCE_S, Tail, TailBrokenError
from drainfsm.log.wire import BrokerMessage, Part, Wire

STREAM = api.STREAM
READ_STALL_S = 10.0
BATCH_RECORDS, BATCH_BYTES = 20_000, 16 << 20
"""Of one read: far below what a server buffers for a slow reader (64 MiB)."""

FOLLOW_RETRY_S = 0.2
BEHIND_S = 2.0
"""For a new leader to catch up."""


_NAME = re.compile(r"[A-Za-z0-9_-]+")

log = logging.getLogger("drainfsm.log")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and where it stands in the stream."""

    sequence: int
    record: Record


async def connect(
    server: NatsServer | str, *, timeout_s: float = CONNECT_S, on_error: Report | None = None
) -> Connection:
    """Connect now; what is lost later is found again for ever, in the background.

    ``server``: a URL does where no files are needed. ``on_error`` hears what no call raises: a
    lost connection, a denied permission.

    Raises:
        BrokerError: no server answers in time, it refuses the credentials, or a file of them will
            not do.
    """
    link = Link(server, on_error=on_error)
    await link.open(timeout_s=timeout_s)
    return Connection(link)


class Connection:
    """A client of the stream; ``connect`` makes one."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._tails: set[Tail] = set()
        self._wires: set[Wire] = set()
        self._kept: Wire | None = None
        """The one of them that nobody reads by now."""

        self._created_stream = False
        self.stream_created = ""
        self.forgets_after_ms = 0
        """How old a record gets in the stream, as ``ensure_stream`` found it; 0: for ever."""

        link.reconnect_hooks.append(self._interrupt)

    @property
    def closed(self) -> bool:
        """For good: by ``close``, or since the server refuses this client."""
        return self.link.closed

    async def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Bounded, whatever the server does."""
        for wire in self._wires:
            wire.close()
        await self.link.close(timeout_s=timeout_s)

    def _interrupt(self) -> None:
        for tail in self._tails:
            tail.interrupt()

    # --- the stream --------------------------------------------------------------------------

    async def ensure_stream(
        self, *, replicas: int = 1, sync_always: bool | None = None
    ) -> list[str]:
        """Create the stream if it is not there; read back what it is. Returns what is to be told:
        how acknowledged records may be lost, and that its room is short.

        Raises:
            BrokerError: no JetStream, or the stream is not an append-only log (names the fields).
        """
        reply = await self.stream_info()
        if reply.error is not None and reply.error.err_code == api.STREAM_NOT_FOUND:
            body = api.create_request(replicas=replicas)
            try:
                made = await self.link.call(api.CREATE, body, api.StreamReply)
            except BrokerError as error:
                raise BrokerError(
                    f"there is no stream {STREAM}: {error}. Whoever may create it runs "
                    "`drainfsm stream init`"
                ) from error
            if made.error is not None and made.error.err_code != api.NAME_IN_USE:
                raise BrokerError(f"cannot create stream {STREAM}: {made.error.description}")
            self._created_stream = True
            reply = await self.stream_info()
        warnings = api.warnings(reply, replicas=replicas, sync_always=sync_always)
        self.stream_created = reply.created
        self.forgets_after_ms = api.forgets_after_ms(reply.config)
        return warnings

    async def stream_warnings(self) -> list[str]:
        """What may be lost of a stream that is there. Nothing is created: the first attempt does.

        Raises:
            BrokerError: no JetStream, or the stream is not an append-only log (names the fields).
        """
        reply = await self.stream_info()
        if reply.error is not None and reply.error.err_code == api.STREAM_NOT_FOUND:
            return []
        return api.warnings(reply, replicas=1, sync_always=None)

    def created_stream(self) -> bool:
        """True once after ``ensure_stream`` found none: what an earlier one had is not in it."""
        created, self._created_stream = self._created_stream, False
        return created

    async def risks(self) -> list[str]:
        """How an acknowledged record may be lost of the stream, as far as can be known.

        Raises:
            BrokerError: the stream cannot be asked for.
        """
        return api.risks((await self.stream_info()).config, sync_always=None)

    async def stream_info(self, query: dict[str, str] | None = None) -> api.StreamReply:
        """What the leader says of the stream; an error, too, is in it.

        Raises:
            BrokerError: no answer.
        """
        body = msgspec.json.encode(query) if query else b""
        return await self.link.call(f"$JS.API.STREAM.INFO.{STREAM}", body, api.StreamReply)

    async def append(self, record: Record, *, after_sequence: int) -> int:
        """Store the record if ``after_sequence`` is the last of its subject (0: none yet).

        Raises:
            StaleWriterError: the subject's last sequence is another one.
            RecordRefusedError: not stored: the stream is full, or the record too large.
            BrokerError: no answer: it may be stored or not, ``last`` tells.
        """
        subject = subject_of(job_id=_name(record.job_id), epoch=record.epoch)
        headers = {
            "Nats-Msg-Id": f"{subject}.{record.id}",  # told apart over the whole stream
            "Nats-Expected-Stream": STREAM,
            "Nats-Expected-Last-Subject-Sequence": str(after_sequence),
        }
        ack = await self.link.call(subject, encode(record), api.PubAck, headers=headers)
        error = ack.error
        if ack.duplicate or (error is not None and error.err_code == api.WRONG_LAST_SEQUENCE):
            raise StaleWriterError(subject, expected_count=record.follows, actual_count=None)
        if error is not None:
            what = api.WHAT_TO_DO.get(error.err_code, "")
            raise RecordRefusedError(
                f"stream {STREAM} refused record {record.id}: {error.description}{what}"
            )
        return ack.seq

    async def count(self, subject: str) -> int:
        """Messages of one subject, by the stream's leader: never an old answer.

        Raises:
            BrokerError: no answer, or no such stream.
        """
        reply = await self.stream_info({"subjects_filter": subject})
        if reply.error is not None:
            raise BrokerError(f"cannot read stream {STREAM}: {reply.error.description}")
        return (reply.state.subjects or {}).get(subject, 0)

    async def last(self, subject: str) -> api.StoredMessage | None:
        """The last message of a subject, from the stream's leader: never an old answer."""
        query = msgspec.json.encode({"last_by_subj": subject})
        reply = await self.link.call(f"$JS.API.STREAM.MSG.GET.{STREAM}", query, api.MessageReply)
        if reply.error is None or reply.error.err_code == api.MESSAGE_NOT_FOUND:
            return reply.message
        raise BrokerError(f"cannot read stream {STREAM}: {reply.error.description}")

    # --- reading -----------------------------------------------------------------------------

    async def read_job(self, job_id: str) -> list[Record]:
        """Every record of a job, of all its attempts, in the order of the stream.

        Raises:
            BrokerError: the server is gone, or has no such stream.
            RecordUnreadableError: a message is no record (of a version known here).
        """
        return await self.read_subject(_subject(job_id))

    async def read_subject(self, subject: str) -> list[Record]:
        """The same for one subject (``subject_of``) or a pattern of them."""
        return [
            _record(message)
            async for messages in self._parts(subject, after_sequence=0)
            for message in messages
        ]

    async def stored(
        self, subject: str, *, after_sequence: int = 0
    ) -> AsyncGenerator[Stored, None]:
        """What the stream holds now, behind a sequence."""
        async with contextlib.aclosing(
            self._parts(subject, after_sequence=after_sequence)
        ) as parts:
            async for messages in parts:
                for message in messages:
                    yield _stored(message)

    async def messages(
        self, subject: str, *, after_sequence: int = 0
    ) -> AsyncGenerator[BrokerMessage, None]:
        """The same, undecoded. A replica that is behind may answer: the newest may be missing."""
        async with contextlib.aclosing(
            self._parts(subject, after_sequence=after_sequence)
        ) as parts:
            async for messages in parts:
                for message in messages:
                    yield message

    async def delivered(self, subject: str) -> AsyncGenerator[BrokerMessage, None]:
        """The same of one subject or pattern, for an agent: it may read its own job's subjects
        only, and a server can check that of a consumer, not of a direct read."""
        tail = Tail(self.link.client, subject, after_sequence=0, inactive_s=READ_ONCE_S)
        self._tails.add(tail)
        try:
            for _ in range(await tail.open(self.link.call)):
                yield await tail.next()
        except TailBrokenError as error:
            raise BrokerError(f"cannot read {subject}: {error}") from error
        finally:
            self._tails.discard(tail)
            await tail.close()

    async def _parts(
        self, subject: str, *, after_sequence: int
    ) -> AsyncGenerator[list[BrokerMessage], None]:
        """As they come: decoding and the server's work go on side by side. Where a connection
        breaks, another goes on."""
        pending = True
        while pending:
            wire, kept = await self._take_wire()
            found = False
            try:
                async with contextlib.aclosing(_batch(wire, subject, after_sequence + 1)) as parts:
                    async for part in parts:
                        if part.messages:
                            found, after_sequence = True, part.messages[-1].sequence
                            yield part.messages
                        if part.pending_count is not None:
                            pending = part.pending_count > 0 and found
            except BrokerError:
                if not (kept or found):
                    raise
            finally:
                self._give_back(wire)

    async def _take_wire(self) -> tuple[Wire, bool]:
        """A connection for one read; whether it was kept from an earlier one."""
        kept, self._kept = self._kept, None
        if kept is not None and not kept.closed:
            return kept, True
        self._wires.add(wire := await Wire.open(self.link.server, timeout_s=CONNECT_S))
        return wire, False

    def _give_back(self, wire: Wire) -> None:
        if wire.closed or self._kept is not None:
            wire.close()
            self._wires.discard(wire)
        else:
            self._kept = wire

    async def follow(self, job_id: str = "") -> AsyncGenerator[Record, None]:
        """Every record of a job (of all jobs) from the first on, and then as they come."""
        async with contextlib.aclosing(self.follow_stored(job_id)) as stored:
            async for one in stored:
                yield one.record

    async def follow_stored(
        self, job_id: str = "", *, after_sequence: int = 0
    ) -> AsyncGenerator[Stored, None]:
        """The same from behind a sequence. Goes on over restarts of the server, for ever, and past
        what is no record of the job, which is logged as a warning. So is a stream that was made
        anew, or came back with less: it is read from its beginning, and sequences with it; records
        that came before come again, and every fold skips them.

        Raises:
            BrokerError: the connection is closed for good.
        """
        following = self.follow_messages(job_id, after_sequence=after_sequence)
        async with contextlib.aclosing(following) as messages:
            async for message in messages:
                try:
                    stored = _stored(message)
                except RecordUnreadableError as error:
                    log.warning("%s: passed over", error)
                    continue
                if stored.record.job_id == message.job_id:
                    yield stored
                else:
                    log.warning(
                        "message %d of stream %s says that it is of job %s: passed over",
                        message.sequence,
                        STREAM,
                        printable(stored.record.job_id),
                    )

    async def follow_messages(
        self, job_id: str = "", *, after_sequence: int = 0
    ) -> AsyncGenerator[BrokerMessage, None]:
        """The same, undecoded, for readers that have to know what is no record.

        Raises:
            BrokerError: the connection is closed for good.
        """
        subject, identity = _subject(job_id) if job_id else api.SUBJECTS, api.StreamIdentity()
        while True:
            try:
                if await identity.changed(self.stream_info, after_sequence):
                    log.warning("stream %s is not the one that was read: read it all", STREAM)
                    after_sequence = 0
                if identity.behind:
                    await asyncio.sleep(BEHIND_S)
                    continue
                async for message in self.messages(subject, after_sequence=after_sequence):
                    after_sequence = message.sequence
                    yield message
                async with contextlib.aclosing(self._tail(subject, after_sequence)) as tail:
                    async for message in tail:
                        after_sequence = message.sequence
                        yield message
            except (BrokerError, TailBrokenError):
                if self.closed:
                    raise BrokerError(f"closed: {self.link.last_error or 'by close()'}") from None
                await asyncio.sleep(FOLLOW_RETRY_S)

    async def _tail(self, subject: str, after_sequence: int) -> AsyncGenerator[BrokerMessage, None]:
        tail = Tail(self.link.client, subject, after_sequence=after_sequence)
        self._tails.add(tail)
        try:
            await tail.open(self.link.call)
            while True:
                yield await tail.next()
        finally:
            self._tails.discard(tail)
            await tail.close()


def _batch(wire: Wire, subject: str, sequence: int) -> AsyncGenerator[Part, None]:
    query: dict[str, object] = {
        "seq": sequence,
        "next_by_subj": subject,
        "batch": BATCH_RECORDS,
        "max_bytes": BATCH_BYTES,
    }
    return wire.read(STREAM, query, timeout_s=READ_STALL_S)


def _name(job_id: str) -> str:
    if not _NAME.fullmatch(job_id):
        raise ValueError(f"job name {job_id!r}: letters, digits, _ and - only")
    return job_id


def _subject(job_id: str) -> str:
    return subjects_of(_name(job_id))


def _stored(message: BrokerMessage) -> Stored:
    return Stored(sequence=message.sequence, record=_record(message))


def _record(message: BrokerMessage) -> Record:
    try:
        return decode(message.data)
    except RecordUnreadableError as error:
        raise RecordUnreadableError(
            f"message {message.sequence} of stream {STREAM}: {error}"
        ) from error
