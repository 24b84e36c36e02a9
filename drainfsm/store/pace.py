"""How fast an object store has been for this process, and what follows for the next object.

Requests in flight are what the store takes in a few seconds: enough to keep a fast one busy, and
few enough that on a slow one each is answered in time. What one request may take before it is tried
again follows from the same measurement: one that hangs is noticed in seconds on a fast store, and a
slow one is not given up.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

FLIGHT_S = 4.0
"""What is in flight is done in about this time."""

ANSWER_TIMES = 8
"""A request that has taken this many times as long as expected is tried again."""

ANSWER_S_MIN, ANSWER_S_MAX = 15, 120

PARTS_MAX = 10_000
"""Of one object, on S3."""


class Flight(NamedTuple):
    """One stream's requests."""

    part_bytes: int
    at_once: int

    answer_s: int
    """How long one may take."""


class StorePace:
    """Of all streams in one direction. Several threads may use it at once."""

    def __init__(self, *, part_bytes: tuple[int, int], flight_bytes: int) -> None:
        """``part_bytes``: the least and the usual size of a request; ``flight_bytes``: most of one
        stream at once."""
        self._least_bytes, self._usual_bytes = part_bytes
        self._flight_bytes = flight_bytes
        self._bytes_per_s = 0.0
        self._lock = threading.Lock()

    def note(self, size_bytes: int, took_s: float) -> None:
        """A stream moved so much while it waited for nothing but the store."""
        with self._lock:
            self._bytes_per_s = size_bytes / max(took_s, 1e-3)

    def flight(self, size_bytes: int = 0) -> Flight:
        """For the next stream. ``size_bytes``: how large it gets about; 0: not known."""
        with self._lock:
            bytes_per_s = self._bytes_per_s
        most = min(self._flight_bytes, bytes_per_s * FLIGHT_S or self._flight_bytes)
        part = max(
            self._least_bytes,
            min(self._usual_bytes, int(most) // 2),
            size_bytes * 10 // (PARTS_MAX * 9),  # with a tenth to spare
        )
        at_once = max(2, int(most) // part)
        if not bytes_per_s:
            return Flight(part, at_once, ANSWER_S_MAX)
        expected_s = part * at_once / bytes_per_s
        answer_s = min(max(ANSWER_S_MIN, round(ANSWER_TIMES * expected_s)), ANSWER_S_MAX)
        return Flight(part, at_once, answer_s)
