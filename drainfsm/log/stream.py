"""The one stream of all jobs' logs: how it must be configured, and what is wrong with a
server's."""

from __future__ import annotations

from typing import Any

import msgspec

from drainfsm.errors import BrokerError

STREAM = "DRAINFSM"
SUBJECTS = "drainfsm.v1.>"
WRONG_LAST_SEQUENCE = 10071
STREAM_NOT_FOUND = 10059
NAME_IN_USE = 10058
MESSAGE_NOT_FOUND = 10037
STREAM_FULL = 10077
DUPLICATE_WINDOW_NS = 120 * 1_000_000_000

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


class StreamReply(msgspec.Struct, frozen=True, kw_only=True):
    config: dict[str, Any] = {}
    error: ApiError | None = None


class ConsumerReply(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    error: ApiError | None = None


def create_request(*, replicas: int) -> bytes:
    config = {
        "name": STREAM,
        "description": "drainfsm: the log of every attempt, one subject each",
        **REQUIRED,
        "max_msgs": -1,
        "max_bytes": -1,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW_NS,
    }
    del config["sealed"]  # may be asked for by an update only
    return msgspec.json.encode(config)


def check(config: dict[str, Any], *, replicas: int) -> None:
    """The stored configuration is an append-only log with at least so many replicas.

    Raises:
        BrokerError: names each field that differs.
    """
    wrong = [
        f"{field} is {config.get(field)!r}, not {wanted!r}"
        for field, wanted in REQUIRED.items()
        if config.get(field, False) not in _OFF.get(field, (wanted,))
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


def warnings(config: dict[str, Any], *, sync_always: bool | None) -> list[str]:
    """What may be lost of the stream, journals aside. ``sync_always`` None: not known."""
    replicas = config.get("num_replicas", 1)
    if sync_always or replicas >= 3:
        return []
    known = "does not run" if sync_always is False else "may not run (a client cannot see it)"
    copies = "1 replica" if replicas == 1 else f"{replicas} replicas"
    return [
        (
            f"stream {STREAM} has {copies} and its server {known} with `sync_interval: always`: "
            "a power cut there can lose the last two minutes of the stream"
        )
    ]
