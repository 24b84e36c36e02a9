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


def source_health(records: Iterable[Record]) -> dict[tuple[str, int], SourceHealth]:
    """By source and node, after the records of one attempt in their order."""
    found: dict[tuple[str, int], SourceHealth] = {}
    for record in records:
        for event in record.events:
            if isinstance(event, SourceUnknown):
                place = (event.source, event.node)
                found[place] = _fell_silent(found.get(place, SourceHealth()), event)
            elif isinstance(event, SourceRecovered) and (event.source, event.node) in found:
                place = (event.source, event.node)
                found[place] = _recovered(found[place], at_unix_ms=record.at_unix_ms)
    return found


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


def metrics_text(job_id: str, records: Iterable[Record]) -> str:
    """The same for Prometheus: a gauge that is 1 while a source cannot tell, and a counter."""
    health = sorted(source_health(records).items())
    lines = [
        "# HELP drainfsm_source_unknown 1 while a notice source cannot tell.",
        "# TYPE drainfsm_source_unknown gauge",
    ]
    for (source, node), state in health:
        now_silent = int(state.unknown_since_unix_ms is not None)
        lines.append(f"drainfsm_source_unknown{_labels(job_id, source, node)} {now_silent}")
    lines += [
        "# HELP drainfsm_source_unknown_total How often a notice source could not tell for long.",
        "# TYPE drainfsm_source_unknown_total counter",
    ]
    for (source, node), state in health:
        labels = _labels(job_id, source, node)
        lines.append(f"drainfsm_source_unknown_total{labels} {state.unknown_count}")
    return "\n".join(lines) + "\n"


def _labels(job_id: str, source: str, node: int) -> str:
    quoted = source.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{job="{job_id}",source="{quoted}",node="{node}"}}'
