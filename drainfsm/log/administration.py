"""The stream, for its administrator: creates it, and finds out about it."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from typing import Any

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.errors import BrokerError
from drainfsm.log import stream as api
from drainfsm.log.jetstream import Connection

MONITOR_S = 5.0
MONITOR_BYTES_MAX = 1 << 20
ALWAYS = "always"


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The stream, as its server describes it."""

    created: bool
    replicas: int
    storage: str
    retention: str
    discard: str
    sync: str
    """``always``, how often, or empty: not known."""

    duplicate_window_s: float
    record_count: int
    used_bytes: int
    max_bytes: int | None
    """None: no limit of its own."""

    max_age_days: float
    """0: records stay for ever."""

    wrong: str
    """Not empty: it is not an append-only log."""

    risks: list[str]
    shortages: list[str]

    @property
    def good(self) -> bool:
        return not (self.wrong or self.risks or self.shortages)


class _Settings(msgspec.Struct, frozen=True):
    sync_interval: int = 0
    sync_always: bool = False


class _JetStream(msgspec.Struct, frozen=True):
    config: _Settings | None = None


def sync_of_servers(urls: Sequence[str]) -> str:
    """What these servers do, by their monitoring ports: the rarest sync counts.

    Raises:
        BrokerError: one does not answer, or has no JetStream.
    """
    longest_ns = 0
    for url in urls:
        found = _settings(url)
        if not found.sync_always:
            longest_ns = max(longest_ns, found.sync_interval)
    return f"{longest_ns / 1e9:g} s" if longest_ns else ALWAYS


def _settings(url: str) -> _Settings:
    at = f"{url.rstrip('/')}/jsz"
    if not at.startswith(("http://", "https://")):
        raise BrokerError(f"--monitor {url}: begins neither with http:// nor https://")
    try:
        with urllib.request.urlopen(at, timeout=MONITOR_S) as answer:
            data = answer.read(MONITOR_BYTES_MAX)
    except OSError as error:
        raise BrokerError(f"--monitor {url}: {error}") from error
    found = read_json(data, _JetStream, lambda why: BrokerError(f"{at} cannot be read: {why}"))
    if found.config is None:
        raise BrokerError(f"{at}: this server runs no JetStream")
    return found.config


async def make_stream(
    connection: Connection, *, replicas: int, max_bytes: int, max_age_days: int = 0, sync: str
) -> Findings:
    """Create it, or record what was found out about the servers of an existing one.

    Raises:
        BrokerError: refused, or no answer.
    """
    body = api.create_request(
        replicas=replicas, max_bytes=max_bytes, max_age_days=max_age_days, sync=sync
    )
    made = await connection.link.call(api.CREATE, body, api.StreamReply)
    if made.error is not None and made.error.err_code != api.NAME_IN_USE:
        raise BrokerError(f"cannot create stream {api.STREAM}: {made.error.description}")
    reply = await connection.stream_info()
    if sync and api.sync_of(reply.config) != sync:
        config = reply.config | {
            "metadata": (reply.config.get("metadata") or {}) | {api.SYNC: sync}
        }
        path = f"$JS.API.STREAM.UPDATE.{api.STREAM}"
        reply = await connection.link.call(path, msgspec.json.encode(config), api.StreamReply)
    created = made.error is None and made.did_create
    return _findings(reply, replicas=replicas, created=created, sync="")


async def check_stream(connection: Connection, *, replicas: int, sync: str) -> Findings:
    """``sync``: what is known now of the servers; empty: what is on record counts.

    Raises:
        BrokerError: no such stream, or no answer.
    """
    return _findings(await connection.stream_info(), replicas=replicas, created=False, sync=sync)


def _findings(reply: api.StreamReply, *, replicas: int, created: bool, sync: str) -> Findings:
    if reply.error is not None:
        raise BrokerError(f"stream {api.STREAM}: {reply.error.description}")
    config: dict[str, Any] = reply.config
    if sync:
        config = config | {"metadata": {api.SYNC: sync}}
    max_bytes = config.get("max_bytes", -1)
    return Findings(
        created=created,
        replicas=config.get("num_replicas", 1),
        storage=config.get("storage", ""),
        retention=config.get("retention", ""),
        discard=config.get("discard", ""),
        sync=api.sync_of(config),
        duplicate_window_s=config.get("duplicate_window", 0) / 1e9,
        record_count=reply.state.messages,
        used_bytes=reply.state.bytes,
        max_bytes=max_bytes if max_bytes > 0 else None,
        max_age_days=api.forgets_after_ms(config) * 1_000_000 / api.DAY_NS,
        wrong=_wrong(config, replicas=replicas),
        risks=api.risks(config, sync_always=None),
        shortages=api.shortages(config, reply.state),
    )


def _wrong(config: dict[str, Any], *, replicas: int) -> str:
    try:
        api.check(config, replicas=replicas)
    except BrokerError as error:
        return f"{error}"
    return ""
