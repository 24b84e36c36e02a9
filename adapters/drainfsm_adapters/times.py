"""The three ways in which clouds write an instant, each to UTC milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

from drainfsm.core.foreign import UNREADABLE

EIGHT_HOURS_EAST = timezone(timedelta(hours=8))
CHARACTERS_MAX = 64


def from_rfc3339(text: str) -> int:
    """``2026-11-29T12:02:00Z``; without a zone it is taken for UTC.

    Raises:
        ValueError: no such instant.
    """
    return _unix_ms(datetime.fromisoformat, text, default=UTC)


def from_http_date(text: str) -> int:
    """``Sun, 29 Nov 2026 12:15:00 GMT``, with or without a weekday, which may be a wrong one
    (documented samples of Azure have such).

    Raises:
        ValueError: no such instant.
    """
    return _unix_ms(parsedate_to_datetime, text, default=UTC)


def from_utc8(text: str) -> int:
    """``2026-11-29 20:02:00``: Tencent states the time of UTC+8 and no zone.

    Raises:
        ValueError: no such instant.
    """
    return _unix_ms(datetime.fromisoformat, text, default=EIGHT_HOURS_EAST)


def _unix_ms(parse: Callable[[str], datetime], text: str, *, default: timezone) -> int:
    if len(text) > CHARACTERS_MAX:
        raise ValueError(f"{text[:CHARACTERS_MAX]!r}… is not an instant")
    try:
        instant = parse(text.strip())
        zoned = instant if instant.tzinfo is not None else instant.replace(tzinfo=default)
        since_epoch = zoned - datetime(1970, 1, 1, tzinfo=UTC)
    except (*UNREADABLE, TypeError, IndexError) as error:  # the standard library is not strict
        raise ValueError(f"{text!r} is not an instant: {error}") from error
    return since_epoch // timedelta(milliseconds=1)
