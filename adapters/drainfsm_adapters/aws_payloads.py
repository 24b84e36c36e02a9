"""What AWS's metadata service says, as readings. Payloads: the pages that ``aws`` names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from drainfsm.core.notice import Cause, NoticeClass
from drainfsm_adapters.ledger import NONE, Observed, Reading
from drainfsm_adapters.lenient import event_of, needed, optional, says_nothing
from drainfsm_adapters.metadata import NoAnswerError, Reply
from drainfsm_adapters.times import CHARACTERS_MAX, from_http_date, from_rfc3339

ENDED = ("canceled", "cancelled", "completed")


def interruption(reply: Reply) -> Observed | None:
    """``spot/instance-action``. Hibernation begins at once, without waiting for its time."""
    if says_nothing(reply.text):
        return None
    stated = reply.json(dict[str, Any])
    action, time = optional(stated, "action"), optional(stated, "time")
    if not action and not time:
        raise NoAnswerError(f"garbage: {reply.text[:60]!r}")
    try:
        stated_unix_ms = from_rfc3339(time)
    except ValueError:  # it goes away, at an unknown time: the job's grace counts
        stated_unix_ms = None
    return _interruption(action or "terminate", time, stated_unix_ms)


def termination(reply: Reply) -> Observed | None:
    """``spot/termination-time``: an instant, where the instance will be terminated; it may be there
    with "a value that is not a time value", too, which says nothing."""
    text = reply.text
    try:
        return _interruption("terminate", text, from_rfc3339(text))
    except ValueError:
        if text.startswith("<") or len(text) > CHARACTERS_MAX:
            raise NoAnswerError(f"garbage: {text[:40]!r}") from None
        return None


def _interruption(action: str, time: str, stated_unix_ms: int | None) -> Observed:
    return Observed(
        key="spot",
        tag=payload_hash(str(stated_unix_ms).encode()),  # two keys state the same instant
        cause=Cause.SPOT_INTERRUPTION,
        notice_class=NoticeClass.HARD,
        stated_unix_ms=stated_unix_ms,
        at_once=action == "hibernate",
        detail=f"{action} at {time or 'no stated time'}",
    )


def rebalance(reply: Reply, *, lead_ms: int, advisory: bool) -> Reading:
    """``events/recommendations/rebalance``: it states no deadline, and is never cleared."""
    if says_nothing(reply.text):
        return NONE
    noticed = optional(reply.json(dict[str, Any]), "noticeTime") or "no stated time"
    observed = Observed(
        key="rebalance",
        tag=payload_hash(reply.body),
        cause=Cause.REBALANCE_RECOMMENDATION,
        notice_class=NoticeClass.SOFT,
        derived_unix_ms=reply.received_unix_ms + lead_ms,
        assumed=True,
        advisory=advisory,
        detail=f"rebalance recommendation of {noticed}",
    )
    return Reading(events=(observed,))


def scheduled_events(reply: Reply) -> Reading:
    """The array of ``events/maintenance/scheduled``; one bad entry does not hide the others."""
    if says_nothing(reply.text):
        return NONE
    events: list[Observed] = []
    ended: dict[str, str] = {}
    problems: list[str] = []
    for raw in reply.json(list[msgspec.Raw]):
        try:
            event = event_of(raw)
            event_id, state = needed(event, "EventId"), optional(event, "State")
            if state.lower() in ENDED:
                ended[event_id] = f"{event_id} is {state}"
            else:
                events.append(_scheduled(event_id, event))
        except ValueError as error:
            problems.append(f"garbage: {error}")
    return Reading(
        events=tuple(events), ended=ended, complete=not problems, detail="; ".join(problems)
    )


def _scheduled(event_id: str, event: Mapping[str, Any]) -> Observed:
    begins, ends = needed(event, "NotBefore"), optional(event, "NotAfter")
    window = f"{begins} to {ends}" if ends else begins
    return Observed(
        key=event_id,
        cause=Cause.HOST_MAINTENANCE,
        notice_class=NoticeClass.SOFT,
        stated_unix_ms=from_http_date(begins),
        detail=f"{optional(event, 'Code')} {window}: {optional(event, 'Description')}",
    )


def payload_hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:12]
