"""How a node's part of the job ended, however its launcher flattened it."""

from __future__ import annotations

from drainfsm.core.failures import Failure, cause_of


class JobCode:
    """Remembers how the ranks ended. The first failure is the cause: the others fail because of
    it."""

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
        """When the rank that is the cause failed."""
        cause = cause_of(self._failures)
        return None if cause is None else cause.at_unix_ms

    def of(self, launcher_code: int) -> int:
        """``launcher_code``: the command's own. Only the launcher can report success."""
        cause = cause_of(self._failures)
        return launcher_code if launcher_code == 0 or cause is None else cause.exit_code

    @property
    def of_ranks(self) -> int:
        """Without the launcher's code."""
        cause = cause_of(self._failures)
        return 0 if cause is None else cause.exit_code
