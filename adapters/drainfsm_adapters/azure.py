"""Azure: Scheduled Events of this VM, and their acknowledgement once the job has left.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from drainfsm.adapter import AdapterContext
from drainfsm.core.foreign import read_json
from drainfsm.core.notice import NoticeClass
from drainfsm_adapters.ledger import Observed, Reading
from drainfsm_adapters.metadata import MetadataClient, NoAnswerError, endpoint_of, garbage, instant
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
"""The first call in 24 hours switches the service on: "up to two minutes"."""

CAUSES = {"Preempt": "spot_interruption", "Terminate": "scale_in"}
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


class Event(msgspec.Struct, rename="pascal", frozen=True):
    event_id: str
    event_type: str
    event_status: str
    resources: list[str]
    not_before: str = ""
    description: str = ""
    duration_in_seconds: int = -1


class Document(msgspec.Struct, rename="pascal", frozen=True):
    document_incarnation: int
    events: list[msgspec.Raw]


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

        self._vm_name = options.vm_name
        self._called = False
        self._incarnation: int | None = None
        self._seen: frozenset[str] = frozenset()

    def platform(self) -> Platform:
        signal = Signal(
            name="scheduledevents",
            read=self.read,
            poll_s=self.options.poll_s,
            unknown_s=self.options.unknown_s,
        )
        return Platform(source=SOURCE, client=self.client, name=self.vm_name, signals=(signal,))

    async def vm_name(self) -> str:
        """As it stands in ``Resources``.

        Raises:
            NoAnswerError: it is not known yet.
        """
        if not self._vm_name:
            reply = await self.client.request("GET", NAME_PATH, headers=HEADERS)
            if reply.status != 200 or not reply.text:
                raise NoAnswerError(f"the VM's name is answered {reply.status}; or set vm_name")
            self._vm_name = reply.text
        return self._vm_name

    async def read(self) -> Reading:
        """Raises: NoAnswerError: the document, or the own name in it, cannot be read."""
        limit_s = self.options.timeout_s if self._called else FIRST_CALL_S
        reply = await self.client.request("GET", EVENTS_PATH, headers=HEADERS, timeout_s=limit_s)
        if reply.status != 200:
            raise NoAnswerError(f"scheduledevents is answered {reply.status}")
        self._called = True
        document = reply.json(Document)
        events, problems = parse(document)
        self._check_incarnation(document, events)
        name = await self.vm_name() if events else ""
        own = [event for event in events if name in event.resources and self._matters(event)]
        self.pending = tuple(event for event in own if event.event_status != "Started")
        return Reading(
            events=tuple(observed(event) for event in own),
            complete=not problems,
            detail="; ".join(problems),
        )

    def _check_incarnation(self, document: Document, events: list[Event]) -> None:
        """An event may be gone only if the incarnation says that the document has changed."""
        seen = frozenset(event.event_id for event in events)
        same = document.document_incarnation == self._incarnation
        if same and not self._seen <= seen:
            raise NoAnswerError("garbage: events are missing from an unchanged incarnation")
        self._incarnation, self._seen = document.document_incarnation, seen

    def _matters(self, event: Event) -> bool:
        """False: a pause too short to leave for."""
        pause_s = event.duration_in_seconds
        return event.event_type != "Freeze" or not 0 <= pause_s < self.options.freeze_s

    async def acknowledge(self, *, timeout_s: float) -> str:
        """Let the events of the job's own VMs begin.

        Raises:
            NoAnswerError: Azure did not take it.
        """
        name = await self.vm_name()
        job_vms = {vm.strip() for vm in self.options.job_vms.split(",")} | {name}
        done: list[str] = []
        left_out: list[str] = []
        for event in self.pending:
            strangers = sorted(set(event.resources) - job_vms)
            if strangers:
                left_out.append(f"{event.event_id} also hits {', '.join(strangers)}")
            elif name == min(event.resources):  # the one of its VMs that speaks for all
                done.append(event.event_id)
        if done:
            body = msgspec.json.encode({"StartRequests": [{"EventId": found} for found in done]})
            reply = await self.client.request(
                "POST", EVENTS_PATH, headers=HEADERS, body=body, timeout_s=timeout_s
            )
            if reply.status != 200:
                raise NoAnswerError(f"the StartRequest is answered {reply.status}")
        said = [f"acknowledged {', '.join(done)}"] if done else []
        return "; ".join([*said, *(f"not acknowledged: {why}" for why in left_out)])


def parse(document: Document) -> tuple[list[Event], list[str]]:
    """One bad event does not hide the others."""
    events: list[Event] = []
    problems: list[str] = []
    for raw in document.events:
        try:
            event = read_json(raw, Event, garbage)
            if event.not_before:
                instant(from_http_date, event.not_before)
            events.append(event)
        except NoAnswerError as error:
            problems.append(str(error))
    return events, problems


def observed(event: Event) -> Observed:
    """Preempt, and whatever has begun, is HARD; the rest may be cancelled."""
    started = event.event_status == "Started"
    hard = started or event.event_type == "Preempt"
    return Observed(
        key=event.event_id,
        cause=CAUSES.get(event.event_type, "host_maintenance"),
        notice_class=NoticeClass.HARD if hard else NoticeClass.SOFT,
        stated_unix_ms=from_http_date(event.not_before) if event.not_before else None,
        at_once=started,
        detail=f"{event.event_type} {event.event_status}: {event.description}",
    )


class AzureAdapter(CloudAdapter):
    """Scheduled Events, acknowledged in the end by one VM for each event."""

    def __init__(self, context: AdapterContext, events: ScheduledEvents) -> None:
        super().__init__(context, events.platform())
        self._events = events

    async def left(self, *, requeue: bool, timeout_ms: int) -> str:
        """The whole job has left: the events may begin, and the machine is free sooner."""
        if not self._events.options.acknowledge:
            return ""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                return await self._events.acknowledge(timeout_s=timeout_ms / 1_000)
        except (NoAnswerError, TimeoutError) as error:
            return f"not acknowledged: {error or 'no time left'}"
