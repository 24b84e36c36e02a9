"""Azure: Scheduled Events of this VM, and their acknowledgement once the job has left.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Set
from typing import Any

import msgspec

from drainfsm.adapter import AdapterContext, Departure
from drainfsm.core.notice import Cause, NoticeClass
from drainfsm_adapters.ledger import NONE, Observed, Reading
from drainfsm_adapters.lenient import event_of, identity_of, needed, optional, whole_number
from drainfsm_adapters.metadata import PATIENCE_S, MetadataClient, NoAnswerError, endpoint_of
from drainfsm_adapters.options import PollOptions, load_options
from drainfsm_adapters.polling import CloudAdapter, Platform, Signal
from drainfsm_adapters.times import from_http_date

SOURCE = "azure"
ENDPOINT_VARIABLE = "DRAINFSM_AZURE_METADATA_ENDPOINT"
ADDRESS = "http://169.254.169.254"
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
FIRST_CALL_S = 125.0
"""The first call in 24 hours switches the service on: "up to two minutes". It may get lost, too: it
is waited for beside calls of the usual length."""

ACKNOWLEDGE_AGAIN_S = 1.0
SAYING = 0.95
"""The rest of the time is for reporting how it went."""

NAME_S = 60.0
"""How often the VM's own name is asked for again."""

CAUSES = {"Preempt": Cause.SPOT_INTERRUPTION, "Terminate": Cause.SCALE_IN}
"""By event type; any other is ``host_maintenance``."""


class AzureOptions(PollOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[adapters.azure]``."""

    poll_s: float = 1.0
    vm_name: str = ""
    """This VM's name in ``Resources``; empty: the instance metadata tells."""

    job_vms: str = ""
    """All VMs of the job, comma-separated: an event for several is acknowledged only if all of
    them are the job's."""

    acknowledge: bool = True
    """Tell Azure that it may begin, once the whole job has left."""

    freeze_s: float = 9.0
    """A Freeze known to be shorter is ridden out."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str
    event_type: str
    event_status: str
    resources: tuple[str, ...]
    not_before_unix_ms: int | None
    description: str
    duration_s: int
    """-1: not known."""

    @property
    def started(self) -> bool:
        return self.event_status == "Started"

    @property
    def hard(self) -> bool:
        """Preempt, and whatever has begun; the rest may be cancelled."""
        return self.started or self.event_type == "Preempt"

    def hits(self, names: Set[str]) -> bool:
        """Azure compares the names of VMs without case."""
        return any(resource.casefold() in names for resource in self.resources)


class Document(msgspec.Struct, rename="pascal", frozen=True):
    document_incarnation: Any = None
    events: list[msgspec.Raw] | None = None


def endpoint_text() -> str:
    return os.environ.get(ENDPOINT_VARIABLE) or ADDRESS


def adapter(context: AdapterContext) -> AzureAdapter:
    """The factory behind ``--source azure``.

    Raises:
        ConfigError: an option or environment variable is wrong.
    """
    options = load_options(AzureOptions, context.options, source=SOURCE)
    client = MetadataClient(
        endpoint_of(endpoint_text(), option=ENDPOINT_VARIABLE),
        timeout_s=options.timeout_s,
        now_unix_ms=context.now_unix_ms,
    )
    return AzureAdapter(context, ScheduledEvents(client, options))


class ScheduledEvents:
    """The document as this VM reads it."""

    def __init__(self, client: MetadataClient, options: AzureOptions) -> None:
        self.client = client
        self.options = options
        self.pending: tuple[Event, ...] = ()
        """Events that hit this VM and have not begun, as last seen."""

        self._stated_name = ""
        """By the instance metadata, as last read."""

        self._called = False
        self._incarnation: Any = None
        self._seen: frozenset[str] = frozenset()

    def platform(self) -> Platform:
        options = self.options
        events = Signal(
            name="scheduledevents",
            read=self.read,
            poll_s=options.poll_s,
            unknown_s=options.unknown_s,
        )
        name = Signal(
            name="vm-name", read=self.check_name, poll_s=NAME_S, unknown_s=options.unknown_s
        )
        return Platform(
            source=SOURCE, client=self.client, name=self.vm_name, signals=(events, name)
        )

    async def vm_name(self) -> str:
        """As it stands in ``Resources``.

        Raises:
            NoAnswerError: it is not known yet.
        """
        return self.options.vm_name or self._stated_name or await self._ask_name()

    async def _ask_name(self) -> str:
        reply = await self.client.request("GET", NAME_PATH, headers=HEADERS)
        if reply.status != 200:
            raise NoAnswerError(f"the VM's name is answered {reply.status}; or set vm_name")
        self._stated_name = identity_of(reply.text, what="compute/name")
        return self._stated_name

    async def check_name(self) -> Reading:
        """With a wrong name no event would ever be ours: it is asked for again, and compared.

        Raises:
            NoAnswerError: it cannot be read, or is not the configured one.
        """
        stated, configured = await self._ask_name(), self.options.vm_name
        if configured and configured.casefold() != stated.casefold():
            raise NoAnswerError(
                f"[adapters.azure] vm_name = {configured!r}, but the instance metadata says "
                f"{stated!r}: events for either are taken for this VM's"
            )
        return NONE

    async def _own_names(self) -> frozenset[str]:
        names = {await self.vm_name(), self._stated_name}
        return frozenset(name.casefold() for name in names if name)

    async def read(self) -> Reading:
        """Raises: NoAnswerError: the document, or the own name in it, cannot be read."""
        patience_s = PATIENCE_S if self._called else FIRST_CALL_S
        reply = await self.client.request(
            "GET", EVENTS_PATH, headers=HEADERS, patience_s=patience_s
        )
        if reply.status != 200:
            raise NoAnswerError(f"scheduledevents is answered {reply.status}")
        document = reply.json(Document)
        self._called = True
        events, problems = parse(document)
        self._check_incarnation(document, events)
        names = await self._own_names() if events else frozenset()
        own = [event for event in events if event.hits(names) and self._matters(event)]
        self.pending = tuple(event for event in own if not event.started)
        return Reading(
            events=tuple(observed(event) for event in own),
            complete=not problems,
            detail="; ".join(problems),
        )

    def _check_incarnation(self, document: Document, events: list[Event]) -> None:
        """An event may be gone only if the incarnation says that the document has changed."""
        seen = frozenset(event.event_id for event in events)
        incarnation = document.document_incarnation
        same = incarnation is not None and incarnation == self._incarnation
        if same and not self._seen <= seen:
            raise NoAnswerError("garbage: events are missing from an unchanged incarnation")
        self._incarnation, self._seen = incarnation, seen

    def _matters(self, event: Event) -> bool:
        """False: a pause too short to leave for."""
        return event.event_type != "Freeze" or not 0 <= event.duration_s < self.options.freeze_s

    async def acknowledge(self, event_ids: Set[str]) -> str:
        """Let those of the events begin that hit the job's own VMs alone.

        Raises:
            NoAnswerError: Azure did not take it.
        """
        name, names = (await self.vm_name()).casefold(), await self._own_names()
        job_vms = {vm.strip().casefold() for vm in self.options.job_vms.split(",")} | names
        done: list[str] = []
        left_out: list[str] = []
        for event in self.pending:
            if event.event_id not in event_ids:
                continue  # the job has not left for it: others on this machine may need the time
            strangers = sorted(vm for vm in event.resources if vm.casefold() not in job_vms)
            if strangers:
                left_out.append(f"{event.event_id} also hits {', '.join(strangers)}")
            elif name == min(map(str.casefold, event.resources)):  # this VM speaks for all of them
                done.append(event.event_id)
        if done:
            body = msgspec.json.encode({"StartRequests": [{"EventId": found} for found in done]})
            reply = await self.client.request("POST", EVENTS_PATH, headers=HEADERS, body=body)
            if reply.status != 200:
                raise NoAnswerError(f"the StartRequest is answered {reply.status}")
        said = [f"acknowledged {', '.join(done)}"] if done else []
        return "; ".join([*said, *(f"not acknowledged: {why}" for why in left_out)])


def parse(document: Document) -> tuple[list[Event], list[str]]:
    """One bad event does not hide the others."""
    events: list[Event] = []
    problems: list[str] = []
    for raw in document.events or ():
        try:
            events.append(_event(event_of(raw)))
        except ValueError as error:
            problems.append(f"garbage: {error}")
    return events, problems


def _event(stated: Mapping[str, Any]) -> Event:
    resources = stated.get("Resources")
    if not isinstance(resources, list):
        raise ValueError(f"Resources is {resources!r}")
    event_type, not_before = needed(stated, "EventType"), optional(stated, "NotBefore")
    try:
        not_before_unix_ms = from_http_date(not_before) if not_before else None
    except ValueError:
        if event_type != "Preempt":
            raise
        not_before_unix_ms = None  # it goes away, at an unknown time: the job's grace counts
    duration_s = whole_number(stated.get("DurationInSeconds"))
    return Event(
        event_id=needed(stated, "EventId"),
        event_type=event_type,
        event_status=optional(stated, "EventStatus"),
        resources=tuple(str(resource) for resource in resources),
        not_before_unix_ms=not_before_unix_ms,
        description=optional(stated, "Description"),
        duration_s=-1 if duration_s is None else duration_s,
    )


def observed(event: Event) -> Observed:
    return Observed(
        key=event.event_id,
        cause=CAUSES.get(event.event_type, Cause.HOST_MAINTENANCE),
        notice_class=NoticeClass.HARD if event.hard else NoticeClass.SOFT,
        stated_unix_ms=event.not_before_unix_ms,
        at_once=event.started,
        detail=f"{event.event_type} {event.event_status}: {event.description}",
    )


class AzureAdapter(CloudAdapter):
    """Scheduled Events, acknowledged in the end by one VM for each event."""

    takes_machine = True
    """What is acknowledged begins at once."""

    def __init__(self, context: AdapterContext, events: ScheduledEvents) -> None:
        super().__init__(context, events.platform())
        self._events = events

    async def left(self, departure: Departure) -> str:
        """The whole job has left: what it has left for may begin, and the machine is free sooner.

        Asked again until Azure answers, or time is up: a request that was heard may come twice.
        """
        event_ids = left_for(departure)
        if not self._events.options.acknowledge or not event_ids:
            return ""
        problem = "no time left"
        try:
            async with asyncio.timeout(departure.timeout_ms * SAYING / 1_000):
                while True:
                    try:
                        return await self._events.acknowledge(event_ids)
                    except NoAnswerError as error:
                        problem = str(error)
                    await asyncio.sleep(ACKNOWLEDGE_AGAIN_S)
        except TimeoutError:
            return f"not acknowledged: {problem}"


def left_for(departure: Departure) -> frozenset[str]:
    """Ids of the events, whichever VM's notice has named them."""
    ours = (one for one in departure.left_for if one.startswith(f"{SOURCE}/"))
    return frozenset(re.sub(r"~\d+$", "", one.rpartition("/")[2]) for one in ours)
