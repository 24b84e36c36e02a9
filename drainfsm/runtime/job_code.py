"""How a node's part of the job ended, however its launcher flattened it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FALLOUT_MS = 500
"""A rank that lost its peer ends within this, as a rule, and with 1: Python's code of an exception.
So a 1 is not taken for the cause where something else was seen so soon after it."""


class Failure(NamedTuple):
    at_unix_ms: int
    exit_code: int


def cause_of(failures: Iterable[Failure]) -> Failure | None:
    """The failure that tells why; None: there was none."""
    ordered = sorted(failures)
    if not ordered:
        return None
    close = [one for one in ordered if one.at_unix_ms <= ordered[0].at_unix_ms + FALLOUT_MS]
    return next((one for one in close if one.exit_code != 1), ordered[0])


class JobCode:
    """Remembers the ranks' ends. The first that failed tells why: the others die of it."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._failures: list[Failure] = []
        self._began: set[int] = set()
        self._live: set[int] = set()

    def rank_began(self, rank: int, incarnation: str) -> None:
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._failures.clear()  # the launcher started the ranks again: a new chance
            self._began.clear()
            self._live.clear()
        self._began.add(rank)
        self._live.add(rank)

    def rank_ended(
        self, rank: int, incarnation: str, exit_code: int | None, *, now_unix_ms: int
    ) -> None:
        if incarnation != self._incarnation:
            return
        self._live.discard(rank)
        if exit_code:
            self._failures.append(Failure(now_unix_ms, exit_code))

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks whose processes have not ended."""
        return tuple(sorted(self._live))

    def all_ended(self, expected_count: int | None) -> bool:
        """Every rank of the node was there, and none is left."""
        return len(self._began) == expected_count and not self._live

    @property
    def failed_unix_ms(self) -> int | None:
        """When the rank failed that tells why."""
        cause = cause_of(self._failures)
        return None if cause is None else cause.at_unix_ms

    def of(self, launcher_code: int) -> int:
        """``launcher_code``: of the command itself. Success is the launcher's to tell."""
        cause = cause_of(self._failures)
        return launcher_code if launcher_code == 0 or cause is None else cause.exit_code

    @property
    def of_ranks(self) -> int:
        """Without the launcher's word."""
        cause = cause_of(self._failures)
        return 0 if cause is None else cause.exit_code
