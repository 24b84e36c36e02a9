"""How often to save while nothing happens: Young's and Daly's intervals."""

from __future__ import annotations

import math

import msgspec


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Between periodic saves, for losses that come without a notice."""

    save_cost_ms: int
    """Training time that one save takes."""

    mtbf_ms: int
    """Mean time between losses of the whole job."""

    young_ms: int
    daly_ms: int
    work_at_risk_ms: int
    """Expected loss of one interruption without notice at Daly's interval: half of it, and the
    save that was under way."""


def interval(*, save_cost_ms: int, mtbf_ms: int) -> Interval:
    """J. W. Young 1974 and J. T. Daly 2006; both times more than zero.

    Raises:
        ValueError: a time that is not positive.
    """
    if save_cost_ms <= 0 or mtbf_ms <= 0:
        raise ValueError("save cost and mean time between losses must be more than 0 ms")
    ratio = save_cost_ms / (2 * mtbf_ms)
    young = math.sqrt(2.0 * save_cost_ms * mtbf_ms)
    daly = float(mtbf_ms)
    if ratio < 1:
        daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_cost_ms
    daly_ms = max(1, round(daly))
    return Interval(
        save_cost_ms=save_cost_ms,
        mtbf_ms=mtbf_ms,
        young_ms=round(young),
        daly_ms=daly_ms,
        work_at_risk_ms=daly_ms // 2 + save_cost_ms,
    )
