"""UNKNOWN, signal by signal: reported once it lasts, and again when other signals join or go."""

from __future__ import annotations

from drainfsm.runtime.sources import NoticeSink


class Health:
    """Of one source. Clears no notice, ever."""

    def __init__(self, *, source: str, sink: NoticeSink) -> None:
        self._source = source
        self._sink = sink
        self._silent: dict[str, tuple[int, str]] = {}
        """By signal: since when it has told nothing, and why."""

        self._reported: frozenset[str] = frozenset()

    def told(self, signal: str) -> None:
        """The signal was read."""
        self._silent.pop(signal, None)
        self._report(self._reported - {signal})

    def silent(
        self, signal: str, *, detail: str, since_unix_ms: int, now: int, limit_ms: int
    ) -> None:
        """The signal could not be read, in a try that began at ``since_unix_ms``."""
        first_unix_ms, _ = self._silent.get(signal, (since_unix_ms, ""))
        self._silent[signal] = (first_unix_ms, detail)
        if now - first_unix_ms >= limit_ms:
            self._report(self._reported | {signal})

    def _report(self, late: frozenset[str]) -> None:
        if late == self._reported:
            return
        self._reported = late
        if not late:
            self._sink.recovered(source=self._source)
            return
        self._sink.unknown(
            source=self._source,
            since_unix_ms=min(self._silent[signal][0] for signal in late),
            detail="; ".join(f"{signal}: {self._silent[signal][1]}" for signal in sorted(late)),
        )
