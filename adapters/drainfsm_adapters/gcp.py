"""Google Cloud: preemption and host maintenance, by long poll.

https://docs.cloud.google.com/compute/docs/metadata/ querying-metadata (ETag, wait_for_change),
getting-live-migration-notice; instances/create-use-spot, .../monitor-plan-host-maintenance-event.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from drainfsm.adapter import AdapterContext
from drainfsm.core.notice import Cause, NoticeClass
from drainfsm.errors import ConfigError
from drainfsm_adapters.ledger import NONE, Observed, Reading
from drainfsm_adapters.lenient import identity_of, optional, says_nothing
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, Reply, endpoint_of, instant
from drainfsm_adapters.options import PollOptions, chosen, load_options
from drainfsm_adapters.polling import HELD_S, CloudAdapter, Platform, Signal
from drainfsm_adapters.times import from_rfc3339

SOURCE = "gcp"
HOST_VARIABLE = "GCE_METADATA_HOST"
ADDRESS = "169.254.169.254"
"""What ``metadata.google.internal`` resolves to; the address needs no resolver."""

HOST_NAME = "metadata.google.internal"
FLAVOR = "Metadata-Flavor"
ROOT = "/computeMetadata/v1/instance"
ADVISORY_POLL_S = 5.0
MAINTENANCE_S = 60.0
GPU_MAINTENANCE_S = 3_600.0
GPU_FAMILIES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
"""Machine types that have GPUs. An N1 may have some attached, which its type does not tell."""

ANSWER_MS = 500
"""An answer that was held back until the change may be this late, on a busy machine."""

PENDING_STOP = "PENDING_STOP"
NO_NOTICE = "no notifications have been received"
ADVISORY_UNKNOWN_S = 600.0
"""Machine types without maintenance notices never answer: reported, but not in a hurry."""


class GcpOptions(PollOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[adapters.gcp]``."""

    signals: str = ""
    """Which to hear, comma-separated; empty: all."""

    long_poll_s: float = 10.0
    """How long the server may hold an answer back; a dead one is noticed after that."""

    preempted_s: float = 30.0
    """From the soft-off signal, sent with the notice, to the end of a Spot VM."""

    preemption_notice_s: float = 0.0
    """The instance's ``preemptionNoticeDuration``: 0 or 120; the metadata does not tell."""

    stop_s: float = 0.0
    """Longest graceful shutdown, the ``maxDuration`` of the instance; 0: the job's grace counts."""

    maintenance_s: float = 0.0
    """From ``maintenance-event`` to the event; 0: an hour for types with GPUs, else a minute."""

    migrate: bool = False
    """Leave before a live migration, too; GPUs cannot be migrated."""


class LongPoll:
    """One key. Read once, then every read returns when the value changes, or after a while."""

    def __init__(
        self, client: MetadataClient, key: str, *, accept: Callable[[str], bool], hold_s: float
    ) -> None:
        self._client = client
        self._key = key
        self._accept = accept
        self._hold_s = hold_s
        self._etag = ""
        self._value = ""
        self._was_so_unix_ms = 0
        """When it was last seen with its value."""

        self.changed_unix_ms: int | None = None
        """Earliest instant at which it can have got its value; None: it had it at the start."""

    async def read(self) -> str:
        """Raises: NoAnswerError: it cannot be read; the next read does not wait."""
        etag, self._etag = self._etag, ""
        path, limit_s = f"{ROOT}/{self._key}", self._client.timeout_s
        if etag:
            path += f"?wait_for_change=true&last_etag={etag}&timeout_sec={self._hold_s:.0f}"
            limit_s += self._hold_s
        reply = await fetch(self._client, path, timeout_s=limit_s)
        if reply.status != 200:
            raise NoAnswerError(f"{self._key} is answered {reply.status}")
        if not self._accept(reply.text):
            raise NoAnswerError(f"garbage: {reply.text[:40]!r}")
        self._note(reply, waited=bool(etag))
        self._etag = reply.headers.get("etag", "")
        return self._value

    def _note(self, reply: Reply, *, waited: bool) -> None:
        took_ms = reply.received_unix_ms - reply.sent_unix_ms
        held_back = waited and took_ms >= HELD_S * 1_000
        since = reply.received_unix_ms - round(HELD_S * 1_000) if held_back else reply.sent_unix_ms
        if self._was_so_unix_ms and reply.text != self._value:
            self.changed_unix_ms = since if held_back else self._was_so_unix_ms
        self._value, self._was_so_unix_ms = reply.text, since


async def fetch(client: MetadataClient, path: str, *, timeout_s: float | None = None) -> Reply:
    """Raises: NoAnswerError: no answer, or one that is not from a metadata server."""
    reply = await client.request("GET", path, headers={FLAVOR: "Google"}, timeout_s=timeout_s)
    if reply.headers.get(FLAVOR.lower()) != "Google":
        raise NoAnswerError(f"answered {reply.status} without {FLAVOR}: not a metadata server")
    return reply


def endpoint_text() -> str:
    return os.environ.get(HOST_VARIABLE) or ADDRESS


def adapter(context: AdapterContext) -> CloudAdapter:
    """The factory behind ``--source gcp``.

    Raises:
        ConfigError: an option or environment variable is wrong.
    """
    options = load_options(GcpOptions, context.options, source=SOURCE)
    if not 1 <= options.long_poll_s <= 300:
        raise ConfigError("[adapters.gcp] long_poll_s: take 1 to 300 seconds")
    client = MetadataClient(
        endpoint_of(endpoint_text(), option=HOST_VARIABLE, host_header=HOST_NAME),
        timeout_s=options.timeout_s,
        now_unix_ms=context.now_unix_ms,
    )
    return CloudAdapter(context, _Gcp(client, options).platform())


class _Gcp:
    """The signals of one instance."""

    def __init__(self, client: MetadataClient, options: GcpOptions) -> None:
        self._client = client
        self._options = options
        self._lead_s = options.maintenance_s
        hold_s = options.long_poll_s
        self._preempted_key = LongPoll(
            client, "preempted", accept=lambda value: value in ("FALSE", "TRUE"), hold_s=hold_s
        )
        self._event_key = LongPoll(
            client,
            "maintenance-event",
            accept=lambda value: value == "NONE" or value.endswith("_ON_HOST_MAINTENANCE"),
            hold_s=hold_s,
        )

    def platform(self) -> Platform:
        options = self._options
        every = {
            "preempted": self._long_polled("preempted", self._preempted),
            "maintenance-event": self._long_polled("maintenance-event", self._maintenance),
            "stop-state": Signal(
                name="stop-state",
                read=self._stop,
                poll_s=options.poll_s,
                unknown_s=options.unknown_s,
            ),
            "upcoming-maintenance": Signal(
                name="upcoming-maintenance",
                read=self._upcoming,
                poll_s=ADVISORY_POLL_S,
                unknown_s=max(self._options.unknown_s, ADVISORY_UNKNOWN_S),
            ),
        }
        names = chosen(self._options.signals, tuple(every), option="[adapters.gcp] signals")
        return Platform(
            source=SOURCE,
            client=self._client,
            name=self._instance_id,
            signals=tuple(every[name] for name in names),
        )

    def _long_polled(self, name: str, read: Callable[[], Awaitable[Reading]]) -> Signal:
        options = self._options
        return Signal(
            name=name,
            read=read,
            poll_s=options.poll_s,
            unknown_s=options.unknown_s,
            held_s=options.long_poll_s,
        )

    async def _instance_id(self) -> str:
        reply = await fetch(self._client, f"{ROOT}/id")
        if reply.status != 200:
            raise NoAnswerError(f"id is answered {reply.status}")
        return identity_of(reply.text, what="id")

    async def _preempted(self) -> Reading:
        value = await self._preempted_key.read()
        if value == "FALSE":
            return NONE
        lead_s = self._options.preempted_s + self._options.preemption_notice_s
        key, since = self._preempted_key, f"{lead_s:g} s from the notice"
        if key.changed_unix_ms is None:
            since += ", which came at an unknown time: it was there when first read"
        observed = Observed(
            key="preempted",
            cause=Cause.SPOT_INTERRUPTION,
            notice_class=NoticeClass.HARD,
            derived_unix_ms=self._deadline(key, lead_s),
            skew_ms=ANSWER_MS if key.changed_unix_ms is not None else round(lead_s * 1_000),
            assumed=key.changed_unix_ms is None,
            detail=f"preempted; {since}",
        )
        return Reading(events=(observed,))

    async def _maintenance(self) -> Reading:
        value = await self._event_key.read()
        if value == "NONE" or (value.startswith("MIGRATE") and not self._options.migrate):
            return NONE
        key, lead_s = self._event_key, await self._maintenance_s()
        known = key.changed_unix_ms is not None  # else its window may be open: the grace counts
        observed = Observed(
            key="maintenance-event",
            cause=Cause.HOST_MAINTENANCE,
            notice_class=NoticeClass.SOFT,
            derived_unix_ms=self._deadline(key, lead_s) if known else None,
            detail=value if known else f"{value}, for an unknown time",
        )
        return Reading(events=(observed,))

    async def _stop(self) -> Reading:
        """A graceful shutdown has been ordered; the key exists only then."""
        reply = await fetch(self._client, f"{ROOT}/shutdown-details/stop-state")
        if reply.status == 404 or (reply.status == 200 and says_nothing(reply.text)):
            return NONE
        if reply.status != 200:
            raise NoAnswerError(f"stop-state is answered {reply.status}")
        if reply.text != PENDING_STOP:
            return NONE
        stop_ms = round(self._options.stop_s * 1_000)
        observed = Observed(
            key="stop-state",
            cause=Cause.SCALE_IN,
            notice_class=NoticeClass.HARD,
            derived_unix_ms=reply.sent_unix_ms + stop_ms if stop_ms else None,
            assumed=True,
            detail="a graceful shutdown was ordered",
        )
        return Reading(events=(observed,))

    async def _maintenance_s(self) -> float:
        """As configured, else by the machine type. One that cannot be read has no GPU."""
        if not self._lead_s:
            reply = await fetch(self._client, f"{ROOT}/machine-type")
            if reply.status == 200:
                machine_type = reply.text.rpartition("/")[2]
                has_gpus = machine_type.startswith(GPU_FAMILIES)
                self._lead_s = GPU_MAINTENANCE_S if has_gpus else MAINTENANCE_S
        return self._lead_s or MAINTENANCE_S

    def _deadline(self, key: LongPoll, lead_s: float) -> int:
        """From the earliest instant of the change: never later than the platform's own."""
        now = self._client.now_unix_ms()
        changed = now if key.changed_unix_ms is None else key.changed_unix_ms
        return max(now, changed + round(lead_s * 1_000))

    async def _upcoming(self) -> Reading:
        reply = await fetch(self._client, f"{ROOT}/upcoming-maintenance?alt=json")
        if reply.status != 200:
            hint = ": this machine type may have none" if reply.status == 404 else ""
            raise NoAnswerError(f"answered {reply.status}{hint}")
        return upcoming_maintenance(reply)


def upcoming_maintenance(reply: Reply) -> Reading:
    """A window that may still move, either way. TPU VMs report by an error that there is none."""
    if says_nothing(reply.text):
        return NONE
    stated = reply.json(dict[str, Any])
    error = optional(stated, "error")
    if NO_NOTICE in error.lower():
        return NONE
    start = optional(stated, "window_start_time", "windowStartTime", "startTime", "start_time")
    if error or not start:
        raise NoAnswerError(error or f"garbage: {reply.text[:60]!r}")
    status = optional(stated, "maintenance_status", "maintenanceStatus")
    observed = Observed(
        key="upcoming-maintenance",
        cause=Cause.HOST_MAINTENANCE,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=instant(from_rfc3339, start),
        detail=f"{optional(stated, 'type')} {status} from {start}".strip(),
    )
    return Reading(events=(observed,))
