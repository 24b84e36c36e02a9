"""AWS: what EventBridge gets and the instance does not, read from an SQS queue of the job.

- Capacity Block Expiration Warning, 40 minutes before the end of a block; its instances begin to
  terminate 10 minutes later (an hour before the end for UltraServers);
- EC2 Capacity Reservation Instance Interruption Warning, two minutes before an instance in
  interruptible capacity is taken.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html. Messages are left
in the queue: the next attempt on the same machines must hear them, too. SQS forgets them in time.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from drainfsm.adapter import AdapterContext, Cause, Notice, NoticeClass, NoticeSink
from drainfsm.errors import ConfigError
from drainfsm.runtime.threads import in_thread
from drainfsm_adapters.health import Health
from drainfsm_adapters.lenient import event_of, needed, optional
from drainfsm_adapters.options import PollOptions, load_options
from drainfsm_adapters.times import from_rfc3339

boto3 = importlib.import_module("boto3")
botocore_config = importlib.import_module("botocore.config")

SOURCE = "aws-events"
BLOCK = ("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning")
INTERRUPTION = "EC2 Capacity Reservation Instance Interruption Warning"
BATCH = 10
BATCHES_MAX = 10
"""SQS hands out a part of the queue at each call."""


class AwsEventsOptions(PollOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[adapters.aws-events]``. Credentials and endpoint are boto3's."""

    poll_s: float = 5.0
    timeout_s: float = 5.0
    unknown_s: float = 60.0
    queue_url: str = ""
    """Of a queue that an EventBridge rule fills with the two events, for this job alone."""

    capacity_reservation: str = ""
    """Its id; empty: events of every reservation are the job's."""

    block_lead_s: float = 1_800.0
    """Instances begin to terminate this long before a Capacity Block ends; 3600 for
    UltraServers."""

    interruption_s: float = 120.0
    """From an interruption warning to the end of the instance."""


def adapter(context: AdapterContext) -> AwsEvents:
    """The factory behind ``--source aws-events``.

    Raises:
        ConfigError: an option is wrong.
    """
    options = load_options(AwsEventsOptions, context.options, source=SOURCE)
    if not options.queue_url.startswith(("https://", "http://")):
        raise ConfigError(f"[adapters.{SOURCE}] queue_url = {options.queue_url!r} is not a URL")
    return AwsEvents(context, options)


class AwsEvents:
    """Node 0 reads the queue for the whole job."""

    def __init__(self, context: AdapterContext, options: AwsEventsOptions) -> None:
        self._context = context
        self._options = options
        self._blocks: dict[str, Notice] = {}
        """By reservation, its end as last stated."""

    async def watch(self, sink: NoticeSink) -> None:
        """Hear notices until cancelled."""
        if self._context.node_rank > 0:
            await asyncio.Event().wait()
        options, now_unix_ms = self._options, self._context.now_unix_ms
        health = Health(source=SOURCE, limit_ms=round(options.unknown_s * 1_000), sink=sink)
        queue = await in_thread("sqs", self._connect)
        while True:
            began = now_unix_ms()
            try:
                bodies = await in_thread("sqs", lambda: self._receive(queue))
            except Exception as error:  # boto3 raises what it likes
                detail = f"{type(error).__name__}: {error}"
                health.silent(detail=detail, since_unix_ms=began, now_unix_ms=now_unix_ms())
            else:
                health.answered()
                for body in bodies:
                    self._hear(body, sink)
            await asyncio.sleep(options.poll_s)

    def _connect(self) -> Any:
        timeout_s = self._options.timeout_s
        config = botocore_config.Config(
            connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 1}
        )
        region = self._options.queue_url.split("//")[1].split(".")
        named = {"region_name": region[1]} if region[0] == "sqs" else {}
        return boto3.client("sqs", config=config, **named)

    def _receive(self, queue: Any) -> list[str]:
        """Blocks on the network. Every message is visible again at the next poll."""
        bodies: list[str] = []
        for _ in range(BATCHES_MAX):
            answer = queue.receive_message(
                QueueUrl=self._options.queue_url,
                MaxNumberOfMessages=BATCH,
                VisibilityTimeout=max(1, round(self._options.poll_s) - 1),
            )
            messages = answer.get("Messages", [])
            bodies += [str(message.get("Body", "")) for message in messages]
            if len(messages) < BATCH:
                break
        return bodies

    def _hear(self, body: str, sink: NoticeSink) -> None:
        try:
            notice = self._notice(event_of(body.encode()))
        except ValueError:
            return  # whatever else is put into the queue
        if notice is None:
            return
        if notice.notice_class is NoticeClass.SOFT:
            reservation, _, end = notice.native_id.partition("/")
            before = self._blocks.get(reservation)
            if before is not None:
                if from_rfc3339(end) <= from_rfc3339(before.native_id.partition("/")[2]):
                    return  # an old warning, or the same
                reason = f"extended to {end}"
                sink.withdraw(source=SOURCE, native_id=before.native_id, reason=reason)
            self._blocks[reservation] = notice
        sink.notice(notice)

    def _notice(self, event: Mapping[str, Any]) -> Notice | None:
        """None: it is not for this job, or over. Raises: ValueError: something that is needed is
        missing."""
        kind, detail = needed(event, "detail-type"), event.get("detail")
        if not isinstance(detail, dict):
            raise ValueError("no detail")
        reservation = optional(detail, "capacity-reservation-id") or "instance"
        wanted = self._options.capacity_reservation
        if wanted and wanted != reservation:
            return None
        if kind in BLOCK:
            return self._block_end(reservation, needed(detail, "end-date"))
        if kind == INTERRUPTION:
            return self._interruption(reservation, event, detail)
        return None

    def _block_end(self, reservation: str, end: str) -> Notice | None:
        now, end_unix_ms = self._context.now_unix_ms(), from_rfc3339(end)
        if end_unix_ms <= now:
            return None
        goes_unix_ms = end_unix_ms - round(self._options.block_lead_s * 1_000)
        return Notice(
            source=SOURCE,
            native_id=f"{reservation}/{end}",
            cause=Cause.CAPACITY_END,
            notice_class=NoticeClass.SOFT,
            deadline_unix_ms=goes_unix_ms if goes_unix_ms > now else None,
            received_unix_ms=now,
            detail=f"capacity block {reservation} ends at {end}",
        )

    def _interruption(
        self, reservation: str, event: Mapping[str, Any], detail: Mapping[str, Any]
    ) -> Notice | None:
        now, told_unix_ms = self._context.now_unix_ms(), from_rfc3339(needed(event, "time"))
        goes_unix_ms = told_unix_ms + round(self._options.interruption_s * 1_000)
        if goes_unix_ms <= now:
            return None
        instance = optional(detail, "instance-id")
        return Notice(
            source=SOURCE,
            native_id=f"{reservation}/{needed(event, 'id')}",
            cause=Cause.SPOT_INTERRUPTION,
            notice_class=NoticeClass.HARD,
            deadline_unix_ms=goes_unix_ms,
            received_unix_ms=now,
            detail=f"{instance or 'an instance'} of {reservation} is interrupted",
        )
