"""What AWS's metadata service says, as readings. Payloads: the pages that ``aws`` names."""

from __future__ import annotations

import hashlib

import msgspec

from drainfsm.core.foreign import read_json
from drainfsm.core.notice import NoticeClass
from drainfsm_adapters.ledger import Observed, Reading
from drainfsm_adapters.metadata import NoAnswerError, Reply, garbage, instant
from drainfsm_adapters.times import from_http_date, from_rfc3339

ENDED = ("canceled", "cancelled", "completed")


class InstanceAction(msgspec.Struct):
    action: str
    time: str


class Rebalance(msgspec.Struct, rename="camel"):
    notice_time: str


class ScheduledEvent(msgspec.Struct, rename="pascal"):
    event_id: str
    state: str
    not_before: str = ""
    not_after: str = ""
    code: str = ""
    description: str = ""


def interruption(reply: Reply) -> Observed:
    """``spot/instance-action``. Hibernation begins at once, its time is not waited for."""
    stated = reply.json(InstanceAction)
    return _interruption(stated.action, stated.time, reply)


def termination(reply: Reply) -> Observed:
    """``spot/termination-time``: only there when the instance will be terminated."""
    return _interruption("terminate", reply.text, reply)


def _interruption(action: str, time: str, reply: Reply) -> Observed:
    return Observed(
        key="spot",
        tag=payload_hash(reply.body),
        cause="spot_interruption",
        notice_class=NoticeClass.HARD,
        stated_unix_ms=instant(from_rfc3339, time),
        at_once=action == "hibernate",
        detail=f"{action} at {time}",
    )


def scheduled_events(reply: Reply) -> Reading:
    """The array of ``events/maintenance/scheduled``; one bad entry does not hide the others."""
    events: list[Observed] = []
    ended: dict[str, str] = {}
    problems: list[str] = []
    for raw in reply.json(list[msgspec.Raw]):
        try:
            event = read_json(raw, ScheduledEvent, garbage)
            if event.state in ENDED:
                ended[event.event_id] = f"{event.event_id} is {event.state}"
            else:
                events.append(_scheduled(event))
        except NoAnswerError as error:
            problems.append(str(error))
    return Reading(
        events=tuple(events), ended=ended, complete=not problems, detail="; ".join(problems)
    )


def _scheduled(event: ScheduledEvent) -> Observed:
    window = f"{event.not_before} to {event.not_after}" if event.not_after else event.not_before
    return Observed(
        key=event.event_id,
        cause="host_maintenance",
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=instant(from_http_date, event.not_before),
        detail=f"{event.code} {window}: {event.description}",
    )


def payload_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]
