"""Names of the slots of a commit log, and whether they follow one another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from drainfsm.errors import CommitLogError

PREFIX = "commits/"
NUMBER_MAX = 99_999_999
"""Eight digits, so that names sort like numbers."""

_NAME = re.compile(r"(\d{8})\.json")


def slot_name(number: int) -> str:
    if not 1 <= number <= NUMBER_MAX:
        raise CommitLogError(f"the commit log is full: slot {number}")
    return f"{number:08d}.json"


def slot_numbers(names: Iterable[str]) -> list[int]:
    """The slots among the names, ascending; other files (``.nfs…``, say) are none."""
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def missing_slot(numbers: Sequence[int], *, after: int) -> int | None:
    """The first slot that is not there though a later one is."""
    for expected, number in enumerate(numbers, start=after + 1):
        if number != expected:
            return expected
    return None
