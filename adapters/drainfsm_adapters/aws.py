"""AWS: Spot interruption, rebalance, scheduled events, Auto Scaling, Capacity Block end.

Paths and payloads: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ spot-instance-termination-
notices.html, rebalance-recommendations.html, viewing_scheduled_events.html,
schedevents_actions_reschedule.html and capacity-blocks-how.html.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from drainfsm.adapter import AdapterContext
from drainfsm.core.notice import Cause, NoticeClass
from drainfsm.errors import ConfigError
from drainfsm_adapters.aws_payloads import (
    interruption,
    rebalance,
    scheduled_events,
    termination,
)
from drainfsm_adapters.imds_token import TokenSession
from drainfsm_adapters.ledger import NONE, Observed, Reading, unknown
from drainfsm_adapters.lenient import identity_of
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, Reply, endpoint_of
from drainfsm_adapters.options import PollOptions, chosen, load_options
from drainfsm_adapters.polling import CloudAdapter, Platform, Signal
from drainfsm_adapters.times import from_rfc3339

SOURCE = "aws"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ADDRESSES = {"IPv4": "http://169.254.169.254", "IPv6": "http://[fd00:ec2::254]"}
TOKEN_HEADER = "X-aws-ec2-metadata-token"
GOING = ("Terminated", "Warmed:Stopped", "Warmed:Hibernated")
"""Target states of an instance that is scaled in: into a warm pool, too."""

STALE_MS = 600_000
"""An interruption whose time passed this long ago has not happened."""

ADVISORY_POLL_S = 5.0
"""For what is stated minutes to weeks ahead."""


class AwsOptions(PollOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[adapters.aws]``."""

    signals: str = ""
    """Which to hear, comma-separated; empty: all."""

    rebalance: str = "record"
    """What to do at a rebalance recommendation, which is never cleared and often without
    consequence: ``record`` it, or ``leave`` for it."""

    rebalance_s: float = 120.0
    """It states no deadline: count as if the interruption notice came now."""

    autoscaling_s: float = 0.0
    """Heartbeat time-out of the group's termination hook; 0: the job's grace counts."""

    capacity_block_end: str = ""
    """When the Capacity Block ends (RFC 3339): the instance does not know."""

    capacity_block_lead_s: float = 1_800.0
    """Instances begin to terminate this long before; 3600 for UltraServers."""


def endpoint_text() -> str:
    """As AWS's SDKs choose it."""
    mode = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv4")
    return os.environ.get(ENDPOINT_VARIABLE) or ADDRESSES["IPv6" if mode == "IPv6" else "IPv4"]


def adapter(context: AdapterContext) -> CloudAdapter:
    """The factory behind ``--source aws``.

    Raises:
        ConfigError: an option or environment variable is wrong.
    """
    options = load_options(AwsOptions, context.options, source=SOURCE)
    if options.rebalance not in ("record", "leave"):
        raise ConfigError(f"[adapters.aws] rebalance = {options.rebalance!r}: take record or leave")
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise ConfigError("AWS_EC2_METADATA_DISABLED=true forbids what --source aws needs")
    client = MetadataClient(
        endpoint_of(endpoint_text(), option=ENDPOINT_VARIABLE),
        timeout_s=options.timeout_s,
        now_unix_ms=context.now_unix_ms,
    )
    return CloudAdapter(context, _Aws(client, options).platform())


class _Aws:
    """The signals of one instance."""

    def __init__(self, client: MetadataClient, options: AwsOptions) -> None:
        self._client = client
        self._options = options
        self._imds = TokenSession(client, header=TOKEN_HEADER, required=True)

    def platform(self) -> Platform:
        options = self._options
        every = {
            "spot": self._signal("spot", self._spot, poll_s=options.poll_s),
            "autoscaling": self._signal("autoscaling", self._autoscaling, poll_s=options.poll_s),
            "rebalance": self._signal("rebalance", self._rebalance),
            "scheduled": self._signal("scheduled", self._scheduled),
        }
        names = chosen(options.signals, tuple(every), option="[adapters.aws] signals")
        signals = [every[name] for name in names]
        if options.capacity_block_end:
            block = capacity_block(options, now_unix_ms=self._client.now_unix_ms())

            async def stated() -> Reading:
                return block

            signals.append(self._signal("capacity-block", stated))
        return Platform(
            source=SOURCE, client=self._client, name=self._instance_id, signals=tuple(signals)
        )

    def _signal(
        self,
        name: str,
        read: Callable[[], Awaitable[Reading]],
        *,
        poll_s: float | None = None,
    ) -> Signal:
        return Signal(
            name=name,
            read=read,
            poll_s=max(poll_s or ADVISORY_POLL_S, self._options.poll_s),
            unknown_s=self._options.unknown_s,
            confirm_count=2,
        )

    async def _instance_id(self) -> str:
        reply = await self._find("instance-id")
        if reply is None:
            raise NoAnswerError("instance-id is not there")
        return identity_of(reply.text, what="instance-id")

    async def _find(self, key: str) -> Reply | None:
        """None: 404, by which the platform says that there is nothing.

        Raises:
            NoAnswerError: any other answer, or none.
        """
        reply = await self._imds.get(f"/latest/meta-data/{key}")
        if reply.status == 404:
            return None
        if reply.status != 200:
            raise NoAnswerError(f"{key} is answered {reply.status}")
        return reply

    async def _spot(self) -> Reading:
        """Both keys state one interruption; the older key has no action."""
        answers = await asyncio.gather(
            self._find("spot/instance-action"),
            self._find("spot/termination-time"),
            return_exceptions=True,
        )
        problems: list[str] = []
        found: list[Observed] = []
        for parse, answer in zip((interruption, termination), answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None and (observed := parse(answer)) is not None:
                    found.append(observed)
            except NoAnswerError as error:
                problems.append(str(error))
        events = tuple(self._soonest(found))
        if problems:
            return unknown("; ".join(dict.fromkeys(problems)), *events)
        return Reading(events=events)

    def _soonest(self, found: list[Observed]) -> list[Observed]:
        """The earlier of two counts, unless it is an old one without consequence."""
        now = self._client.now_unix_ms()
        stale = [
            observed
            for observed in found
            if observed.stated_unix_ms is not None
            and self._client.clock.ours_unix_ms(observed.stated_unix_ms) < now - STALE_MS
        ]
        fresh = [observed for observed in found if observed not in stale]
        return sorted(fresh or stale, key=lambda o: (not o.at_once, o.stated_unix_ms or now))[:1]

    async def _rebalance(self) -> Reading:
        reply = await self._find("events/recommendations/rebalance")
        lead_ms = round(self._options.rebalance_s * 1_000)
        advisory = self._options.rebalance == "record"
        return NONE if reply is None else rebalance(reply, lead_ms=lead_ms, advisory=advisory)

    async def _scheduled(self) -> Reading:
        reply = await self._find("events/maintenance/scheduled")
        return NONE if reply is None else scheduled_events(reply)

    async def _autoscaling(self) -> Reading:
        reply = await self._find("autoscaling/target-lifecycle-state")
        if reply is None or reply.text not in GOING:
            return NONE
        heartbeat_ms = round(self._options.autoscaling_s * 1_000)
        interruption = next(iter((await self._spot()).events), None)
        stated_unix_ms = interruption.stated_unix_ms if interruption is not None else None
        observed = Observed(
            key="autoscaling",
            cause=Cause.SCALE_IN,
            notice_class=NoticeClass.SOFT,
            stated_unix_ms=stated_unix_ms,  # that of the machine, where one is stated
            derived_unix_ms=reply.received_unix_ms + heartbeat_ms if heartbeat_ms else None,
            assumed=stated_unix_ms is None,
            detail=f"target-lifecycle-state {reply.text}",
        )
        return Reading(events=(observed,))


def capacity_block(options: AwsOptions, *, now_unix_ms: int) -> Reading:
    """SOFT: a block can be extended, and the configuration changed then.

    Raises:
        ConfigError: no such instant, or it has passed.
    """
    end = options.capacity_block_end
    option = f"[adapters.aws] capacity_block_end = {end!r}"
    try:
        end_unix_ms = from_rfc3339(end)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
    if end_unix_ms <= now_unix_ms:
        raise ConfigError(f"{option}: it has passed; state the end of the present block")
    observed = Observed(
        key="capacity-block",
        tag=end,
        cause=Cause.CAPACITY_END,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=end_unix_ms - round(options.capacity_block_lead_s * 1_000),
        detail=f"capacity block ends at {end}",
    )
    return Reading(events=(observed,))
