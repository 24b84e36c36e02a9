"""How long to wait before the next try: longer after each failure."""

from __future__ import annotations

DOUBLINGS_MAX = 64
"""Keeps the power inside the range of a float; ``longest_s`` has long been reached."""


def backoff_s(failure_count: int, *, first_s: float, longest_s: float) -> float:
    """The wait after this many failures in a row, from 1: ``first_s``, then twice as long each
    time."""
    return min(longest_s, first_s * 2.0 ** min(failure_count - 1, DOUBLINGS_MAX))
