"""How a node's part of the job ended, however its launcher flattened it."""

from __future__ import annotations


class JobCode:
    """Remembers the ranks' ends. The first that failed tells why: the others die of it."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._first_failure: int | None = None
        self.failed_unix_ms: int | None = None
        """When that was."""

        self._began: set[int] = set()
        self._live: set[int] = set()

    def rank_began(self, rank: int, incarnation: str) -> None:
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            # The launcher started the ranks again: a new chance.
            self._first_failure = self.failed_unix_ms = None
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
        if self._first_failure is None and exit_code:
            self._first_failure, self.failed_unix_ms = exit_code, now_unix_ms

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks whose processes have not ended."""
        return tuple(sorted(self._live))

    def all_ended(self, expected_count: int | None) -> bool:
        """Every rank of the node was there, and none is left."""
        return len(self._began) == expected_count and not self._live

    def of(self, launcher_code: int) -> int:
        """``launcher_code``: of the command itself. Success is the launcher's to tell."""
        if launcher_code == 0 or self._first_failure is None:
            return launcher_code
        return self._first_failure

    @property
    def of_ranks(self) -> int:
        """Without the launcher's word."""
        return self._first_failure or 0
