"""Which of several failures explains why a job ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FALLOUT_MS = 500
"""A rank that lost its peer usually ends within this time, and with 1, Python's code for an
exception. So a 1 is not taken for the cause where another code was seen this soon after it."""

FALLOUT_CODES = (1, 143)
"""143: of SIGTERM, by which a launcher ends those that are left."""


class Failure(NamedTuple):
    at_unix_ms: int
    exit_code: int


def cause_of(failures: Iterable[Failure]) -> Failure | None:
    """The failure that explains the end; None: there was none."""
    ordered = sorted(failures)
    if not ordered:
        return None
    close = [one for one in ordered if one.at_unix_ms <= ordered[0].at_unix_ms + FALLOUT_MS]
    return next((one for one in close if one.exit_code not in FALLOUT_CODES), ordered[0])
