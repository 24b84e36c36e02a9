"""The exit code of a node's part of the job, however its launcher flattened it."""

from __future__ import annotations


class JobCode:
    """Remembers how ranks ended. The first that failed tells why: the others die of it."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._first_failure: int | None = None

    def rank_ended(self, incarnation: str, exit_code: int | None) -> None:
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._first_failure = None  # the launcher started the ranks again: a new chance
        if self._first_failure is None and exit_code:
            self._first_failure = exit_code

    def of(self, launcher_code: int) -> int:
        """``launcher_code``: of the command itself. Success is the launcher's to tell."""
        if launcher_code == 0 or self._first_failure is None:
            return launcher_code
        return self._first_failure
