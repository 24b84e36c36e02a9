"""A replay as plain text, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from drainfsm.core.budget import Allowances, Budget, Sample
from drainfsm.core.events import Event, UnknownFact
from drainfsm.core.notice import Notice
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.text import printable
from drainfsm.views.replay import APPLIED, AttemptReplay, Final, Line

WIDTH = 100
STATE_COLUMN = 27
CHARS_MAX = 4_000
"""Length of what is said of one event; ``--json`` has all of it."""

HEADING = f"{'time (UTC)':13}{'to deadline':>12}  {'state':11}event"


def table(replay: AttemptReplay) -> Iterator[str]:
    """Heading, one entry an event, and how it ended."""
    final = replay.final
    yield f"job {printable(final.job_id)}, attempt {final.epoch}"
    if replay.lines:
        yield HEADING
    day = ""
    for line in replay.lines:
        if (date := day_and_time(line.at_unix_ms)[0]) != day:
            day = date
            yield day
        yield from _entry(line)
    ending = printable(_ending(final), chars_max=CHARS_MAX)
    yield from textwrap.wrap(ending, WIDTH, subsequent_indent="  ")


def day_and_time(unix_ms: int) -> tuple[str, str]:
    """``2026-08-21`` and ``14:03:07.120``; what no calendar can hold stays a number."""
    try:
        instant = datetime.fromtimestamp(unix_ms // 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return "", f"{unix_ms} ms"
    return f"{instant:%Y-%m-%d}", f"{instant:%H:%M:%S}.{unix_ms % 1_000:03d}"


def in_seconds(value_ms: int) -> str:
    """``12.345 s``, exact at any size: a log may hold values that no clock gives."""
    seconds, rest_ms = divmod(abs(value_ms), 1_000)
    return f"{'-' if value_ms < 0 else ''}{seconds}.{rest_ms:03d} s"


def _entry(line: Line) -> Iterator[str]:
    left = "" if line.remaining_ms is None else in_seconds(line.remaining_ms)
    kind = line.kind if line.outcome == APPLIED else f"[{line.outcome}] {line.kind}"
    at = day_and_time(line.at_unix_ms)[1]
    yield f"{at:13}{left:>12}  {line.phase.value:11}{printable(kind)}"
    for text in filter(None, (line.note, describe(line.event))):
        indent = " " * STATE_COLUMN
        yield from textwrap.wrap(
            printable(text, chars_max=CHARS_MAX),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
        )


def _ending(final: Final) -> str:
    parts = [f"final state: {final.phase.value}"]
    if final.lost:
        parts.append(f"attempt lost: {final.lost}")
    if final.exit_code is not None:
        by_itself = "" if final.drains else " (the job ended by itself)"
        parts.append(f"exit code {final.exit_code}{by_itself}")
    if final.fenced_by is not None:
        parts.append(f"fenced by epoch {final.fenced_by}")
    if final.committed is not None:
        parts.append(f"committed {final.committed.generation_id} (step {final.committed.step})")
    if final.requeue is not None and final.requeue.cause != "finished":
        parts.append(f"the replacement resumes at step {final.requeue.resume_step}")
    total = sum(final.event_counts.values())
    odd = [f"{n} {what}" for what, n in final.event_counts.items() if what != APPLIED and n]
    parts.append(f"{total} events" + (f" ({', '.join(odd)})" if odd else ""))
    return "; ".join(parts)


def describe(event: Event | UnknownFact) -> str:
    """The event's fields, shortest sensible form; ``--json`` has all of them."""
    if isinstance(event, UnknownFact):
        return printable(bytes(event.body).decode("utf-8", "replace"), chars_max=CHARS_MAX)
    return ", ".join(_named(event))


def _named(value: msgspec.Struct) -> Iterator[str]:
    """``name value`` of every field that is set, the unit after the number."""
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        text = _shown(content)
        if not text:
            continue
        name, unit = field.name, ""
        if isinstance(content, int) and name.endswith("_unix_ms"):
            name, text = name.removesuffix("_unix_ms"), day_and_time(content)[1]
        elif isinstance(content, int):
            for suffix in ("ms", "bytes"):
                if name.endswith(f"_{suffix}"):
                    name, unit = name.removesuffix(f"_{suffix}"), f" {suffix}"
        yield f"{name} {text}{unit}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "none"
        case msgspec.UnsetType():
            return ""
        case Allowances():
            return ""
        case Budget():
            verdict = "fits" if value.fits else "does not fit"
            return f"needs {value.needed_ms} of {value.remaining_ms} ms: {verdict}"
        case Notice():
            identity, cause = printable(value.identity), printable(value.cause)
            return f"{identity} {value.notice_class.value} cause {cause}"
        case RequeueRecord(generation_id=None):
            return f"a fresh start, cause {value.cause}"
        case RequeueRecord():
            return f"{value.generation_id} at step {value.step}, cause {value.cause}"
        case msgspec.Struct():
            return f"({', '.join(_named(value))})"
        case tuple() if value and isinstance(value[0], Sample):
            return f"({len(value)} of them)"
        case tuple():
            return " ".join(map(_shown, value))
        case _:
            return printable(str(value))
