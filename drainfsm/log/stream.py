"""The one stream of all jobs' logs: how it must be configured, and what is wrong with a
server's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from drainfsm.errors import BrokerError

STREAM = "DRAINFSM"
SUBJECTS = "drainfsm.v1.>"
CREATE = f"$JS.API.STREAM.CREATE.{STREAM}"
WRONG_LAST_SEQUENCE = 10071
STREAM_NOT_FOUND = 10059
NAME_IN_USE = 10058
MESSAGE_NOT_FOUND = 10037
STREAM_FULL = 10077
MESSAGE_TOO_LARGE = 10054
WHAT_TO_DO = {STREAM_FULL: "; raise its limits", MESSAGE_TOO_LARGE: "; raise its max_msg_size"}
RECORD_BYTES_MAX = 1 << 20
"""More than any record; what a server takes by default."""

DUPLICATE_WINDOW_NS = 120 * 1_000_000_000
SYNC = "drainfsm-sync"
"""Key of the stream's metadata: what its servers do before they acknowledge. A client cannot see
it; ``drainfsm stream`` asks their monitoring ports, and leaves the answer for agents."""

LEFT_SHARE_MIN = 0.1
"""Of a limit of the stream: with less of it left, agents tell."""

REQUIRED: dict[str, Any] = {
    "subjects": [SUBJECTS],
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "deny_delete": True,
    "deny_purge": True,
    "allow_direct": True,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "no_ack": False,
    "sealed": False,
}
"""An append-only log: nothing is evicted or purged; a full stream refuses instead of forgetting."""

_OFF: dict[str, tuple[Any, ...]] = {
    "max_age": (0,),
    "max_msgs_per_subject": (0, -1),
}
"""Values of the server that mean the same as the one asked for."""

AGE_DAYS_MIN = 7
DAY_NS = 86_400 * 1_000_000_000
"""Records may go by age once they are archived; never while their attempt may still be shipped."""


class ApiError(msgspec.Struct, frozen=True, kw_only=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True, kw_only=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    seq: int
    data: bytes = b""


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    message: StoredMessage | None = None
    error: ApiError | None = None


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int = 0
    messages: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None
    """Messages of each subject that was asked for."""


class StreamReply(msgspec.Struct, frozen=True, kw_only=True):
    did_create: bool = False
    created: str = ""
    config: dict[str, Any] = {}
    state: StreamState = StreamState()
    error: ApiError | None = None


class ConsumerReply(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    num_pending: int = 0
    """Messages that it is about to deliver."""

    error: ApiError | None = None


class StreamIdentity:
    """Which stream it is that was read so far: it may be made anew, or come back from a backup, and
    what comes then would be taken for known."""

    def __init__(self) -> None:
        self._created = ""
        self.behind = False
        """It has less than was read, and may only be late to tell."""

    async def changed(self, ask: Callable[[], Awaitable[StreamReply]], sequence: int) -> bool:
        """Whether it is another one by now. ``ask``: what its leader says; ``sequence``: of the
        last message that was read."""
        try:
            reply = await ask()
        except BrokerError:  # who reads from a mirror, or may not ask, cannot know
            return False
        if reply.error is not None:
            return False
        # Once may be a new leader that has not caught up.
        behind = reply.state.last_seq < sequence
        other = self._created not in ("", reply.created) or (behind and self.behind)
        self._created, self.behind = reply.created, behind and not other
        return other


def create_request(
    *, replicas: int, max_bytes: int = -1, max_age_days: int = 0, sync: str = ""
) -> bytes:
    """``max_age_days``: 0: records stay for ever. ``sync``: what is known of the server, ``always``
    or how often; empty: nothing."""
    config = {
        "name": STREAM,
        "description": "drainfsm: the log of every attempt, one subject each",
        **REQUIRED,
        "max_msgs": -1,
        "max_bytes": max_bytes,
        "max_age": max_age_days * DAY_NS,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW_NS,
    }
    if sync:
        config["metadata"] = {SYNC: sync}
    del config["sealed"]  # may be asked for by an update only
    return msgspec.json.encode(config)


def check(config: dict[str, Any], *, replicas: int) -> None:
    """The stored configuration is an append-only log with at least this many replicas.

    Raises:
        BrokerError: names each field that differs.
    """
    wrong = [
        f"{field} is {config.get(field)!r}, not {wanted!r}"
        for field, wanted in REQUIRED.items()
        if config.get(field, False) not in _OFF.get(field, (wanted,))
        and not (field == "max_age" and config[field] >= AGE_DAYS_MIN * DAY_NS)
    ]
    if config.get("mirror") or config.get("sources"):
        wrong.append("it copies another stream")
    if config.get("persist_mode", "default") not in ("", "default"):
        wrong.append(f"persist_mode is {config['persist_mode']!r}, not 'default'")
    if config.get("num_replicas", 1) < replicas:
        wrong.append(f"num_replicas is {config.get('num_replicas', 1)}, not {replicas}")
    if wrong:
        raise BrokerError(
            f"stream {STREAM} is not an append-only log: {'; '.join(wrong)}. Correct it with "
            f"`nats stream edit {STREAM}`, or use another account"
        )


def forgets_after_ms(config: dict[str, Any]) -> int:
    """How old a record gets in the stream; 0: for ever."""
    return int(config.get("max_age", 0)) // 1_000_000


def sync_of(config: dict[str, Any]) -> str:
    """What an administrator has found out of the servers: ``always``, how often, or empty."""
    return str((config.get("metadata") or {}).get(SYNC, ""))


def risks(config: dict[str, Any], *, sync_always: bool | None) -> list[str]:
    """How a record that was acknowledged may be lost of the stream, journals aside.
    ``sync_always``: what is known besides of the servers; None: nothing."""
    sync, replicas = sync_of(config), config.get("num_replicas", 1)
    if sync_always or sync == "always" or replicas >= 3:
        return []
    known = "may not sync before it acknowledges (`drainfsm stream check --monitor URL` finds out)"
    if sync or sync_always is False:
        known = f"syncs only every {sync or 'two minutes'} (set `sync_interval: always`)"
    copies = "1 replica" if replicas == 1 else f"{replicas} replicas"
    lost = "a power cut there can lose the last minutes of the stream"
    return [f"stream {STREAM} has {copies}, and its server {known}: {lost}"]


def shortages(config: dict[str, Any], state: StreamState) -> list[str]:
    """Of room: a full stream refuses records, and they stay in the journal."""
    found = []
    largest = config.get("max_msg_size", -1)
    if 0 < largest < RECORD_BYTES_MAX:
        found.append(
            f"stream {STREAM} takes records of {largest:,} bytes at most: raise max_msg_size, or "
            "larger ones, and all behind them, stay in the journals"
        )
    for field, used, unit in (
        ("max_bytes", state.bytes, "bytes"),
        ("max_msgs", state.messages, "records"),
    ):
        limit = config.get(field, -1)
        if limit > 0 and limit - used < limit * LEFT_SHARE_MIN:
            found.append(
                f"stream {STREAM} is nearly full: less than a tenth of {limit:,} {unit} is left; "
                f"raise {field}, or records stay in the journals"
            )
    return found


def warnings(reply: StreamReply, *, replicas: int, sync_always: bool | None) -> list[str]:
    """All that is to be told of it.

    Raises:
        BrokerError: it cannot be used, or is not an append-only log (names the fields).
    """
    if reply.error is not None:
        raise BrokerError(f"cannot use stream {STREAM}: {reply.error.description}")
    check(reply.config, replicas=replicas)
    return [
        *risks(reply.config, sync_always=sync_always),
        *shortages(reply.config, reply.state),
    ]
