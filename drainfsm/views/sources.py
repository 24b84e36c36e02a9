"""Notice sources that could not tell: how often, for how long, and which cannot tell now.

Folded from the log, so that a dashboard, a postmortem and an exporter count the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from drainfsm.core.events import SourceRecovered, SourceUnknown
from drainfsm.core.records import Record


class SourceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One signal of one source, as one node hears it."""

    unknown_count: int = 0
    unknown_ms: int = 0
    """Of the times that are over."""

    unknown_since_unix_ms: int | None = None
    """Not None: it cannot tell now."""

    detail: str = ""


class BlindSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source that cannot tell now."""

    source: str
    node: int
    since_unix_ms: int
    detail: str


class SourceLedger:
    """The sources of one attempt. Read its records in their order."""

    def __init__(self) -> None:
        self.health: dict[tuple[str, int], SourceHealth] = {}
        """By source and node."""

    def read(self, record: Record) -> None:
        for event in record.events:
            if isinstance(event, SourceUnknown):
                place = (event.source, event.node)
                before = self.health.get(place, SourceHealth())
                self.health[place] = _fell_silent(before, event)
            elif isinstance(event, SourceRecovered) and (event.source, event.node) in self.health:
                place = (event.source, event.node)
                self.health[place] = _recovered(self.health[place], at_unix_ms=record.at_unix_ms)

    def blind(self) -> tuple[BlindSource, ...]:
        return tuple(
            BlindSource(source=source, node=node, since_unix_ms=since, detail=health.detail)
            for (source, node), health in sorted(self.health.items())
            if (since := health.unknown_since_unix_ms) is not None
        )


def sources_of(records: Iterable[Record]) -> SourceLedger:
    """After the records of one attempt."""
    ledger = SourceLedger()
    for record in records:
        ledger.read(record)
    return ledger


def _fell_silent(before: SourceHealth, event: SourceUnknown) -> SourceHealth:
    if before.unknown_since_unix_ms is not None:
        return msgspec.structs.replace(before, detail=event.detail)
    return msgspec.structs.replace(
        before,
        unknown_count=before.unknown_count + 1,
        unknown_since_unix_ms=event.since_unix_ms,
        detail=event.detail,
    )


def _recovered(before: SourceHealth, *, at_unix_ms: int) -> SourceHealth:
    since = before.unknown_since_unix_ms
    if since is None:
        return before
    lasted_ms = max(0, at_unix_ms - since)
    return msgspec.structs.replace(
        before,
        unknown_ms=before.unknown_ms + lasted_ms,
        unknown_since_unix_ms=None,
        detail="",
    )
