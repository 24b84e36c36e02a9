"""How long to wait before the next try: longer with every one that failed."""

from __future__ import annotations

DOUBLINGS_MAX = 64
"""More would be no float any more, and no wait that anybody sits out."""


def backoff_s(failure_count: int, *, first_s: float, longest_s: float) -> float:
    """After so many failures in a row, from 1: the first wait, then twice as long each time."""
    return min(longest_s, first_s * 2.0 ** min(failure_count - 1, DOUBLINGS_MAX))
