"""Distribution-free upper bounds for quantiles of durations.

Order statistics only: no assumption about the shape of the distribution. With n independent
samples, the k-th smallest is at or above the true q-quantile with probability
``P(Binomial(n, q) <= k - 1)``. The bound is the smallest such sample that reaches the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

CONFIDENCE = 0.95
"""Chance that the bound is not below the true quantile. Higher asks for more samples."""


def samples_needed(quantile: float, *, confidence: float = CONFIDENCE) -> int:
    """Smallest sample count for which a bound exists (59 for p95, 299 for p99, at 95 %)."""
    if not 0.0 < quantile < 1.0 or not 0.0 < confidence < 1.0:
        raise ValueError("quantile and confidence lie strictly between 0 and 1")
    return math.ceil(math.log(1.0 - confidence) / math.log(quantile))


def upper_bound(
    samples: Sequence[int], *, quantile: float, confidence: float = CONFIDENCE
) -> int | None:
    """An upper confidence bound of the quantile, or None where the samples are too few."""
    count = len(samples)
    if count < samples_needed(quantile, confidence=confidence):
        return None
    return sorted(samples)[_order(count, quantile, confidence) - 1]


def _order(count: int, quantile: float, confidence: float) -> int:
    """Smallest k with P(Binomial(count, quantile) <= k - 1) >= confidence, counted from above."""
    tail = 0.0  # P(Binomial >= k)
    k = count + 1
    log_q, log_p = math.log(quantile), math.log(1.0 - quantile)
    while k > 1:
        successes = k - 1
        log_term = (
            math.lgamma(count + 1)
            - math.lgamma(successes + 1)
            - math.lgamma(count - successes + 1)
            + successes * log_q
            + (count - successes) * log_p
        )
        if tail + math.exp(log_term) > 1.0 - confidence:
            break
        tail += math.exp(log_term)
        k -= 1
    return min(k, count)
