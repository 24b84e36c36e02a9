"""UNKNOWN: one signal that cannot be read, reported once it lasts, and once it is over."""

from __future__ import annotations

from drainfsm.adapter import NoticeSink


class Health:
    """Of one signal. Never withdraws a notice."""

    def __init__(self, *, source: str, limit_ms: int, sink: NoticeSink) -> None:
        self._source = source
        self._limit_ms = limit_ms
        self._sink = sink
        self._silent_since_unix_ms: int | None = None
        self._reported = False

    def answered(self) -> None:
        """The signal was read."""
        self._silent_since_unix_ms = None
        if self._reported:
            self._reported = False
            self._sink.recovered(source=self._source)

    def silent(self, *, detail: str, since_unix_ms: int, now_unix_ms: int) -> None:
        """The signal could not be read, in a try that began at ``since_unix_ms``."""
        since = self._silent_since_unix_ms = self._silent_since_unix_ms or since_unix_ms
        if not self._reported and now_unix_ms - since >= self._limit_ms:
            self._reported = True
            self._sink.unknown(source=self._source, since_unix_ms=since, detail=detail)
