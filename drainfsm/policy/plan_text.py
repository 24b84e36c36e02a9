"""A plan as plain text, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from drainfsm.core.budget import Evidence
from drainfsm.core.text import span
from drainfsm.policy.plan import Plan, Windows

WIDTH = 100
BAR = 40
LABEL = 26
TERM, WINDOW = 18, 28

BASES = {
    "quantile": "bound of the quantile",
    "observed_max": "longest on record",
    "allowance": "allowance",
}


def plan_text(plan: Plan) -> Iterator[str]:
    yield f"checkpoint {size(plan.save_bytes)}, {size(plan.node_bytes)} a node on {plan.node_count}"
    yield f"bandwidth {size(plan.bytes_per_s)}/s of the whole job ({plan.bandwidth_basis})"
    yield ""
    yield from _terms(plan)
    yield from _log(plan)
    yield ""
    yield "Set"
    for setting in plan.settings:
        yield from _row(setting.where, f"{setting.text}  ({setting.why})")
    yield ""
    yield "Platforms"
    for verdict in plan.platforms:
        word = "fits" if verdict.fits else "NOT POSSIBLE" if verdict.window.fixed else "too short"
        spare = f"{seconds(verdict.window.window_ms)}, {seconds(abs(verdict.spare_ms))} "
        spare += "to spare" if verdict.fits else "missing"
        note = f" ({verdict.window.note})" if verdict.window.note else ""
        yield from _row(verdict.window.platform, f"{word}: {spare}{note}")
    if plan.interval is not None:
        yield ""
        yield "Periodic saves, for losses without a notice"
        every = plan.interval
        yield from _row("one save costs", f"{seconds(every.save_cost_ms)} of training time")
        yield from _row("mean time between losses", span(every.mtbf_ms))
        yield from _row(
            "save every", f"{span(every.daly_ms)} (Daly; Young: {span(every.young_ms)})"
        )
        yield from _row("work at risk", f"{span(every.work_at_risk_ms)} a loss, on average")


def size(count: int) -> str:
    """Decimal units, as bandwidths are given: ``52.5 GB``."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1_000:
            return f"{value:.3g} {unit}"
        value /= 1_000
    return f"{value:.3g} PB"


def seconds(value_ms: int) -> str:
    return f"{value_ms / 1_000:.1f} s"


def _terms(plan: Plan) -> Iterator[str]:
    """One row a term, with its place in the window as a bar."""

    def base(found: Evidence) -> str:
        if found.basis == "sizing":
            bytes_ms = plan.save_bytes * 1_000 // max(1, plan.bytes_per_s)
            return f"{seconds(bytes_ms)} of bytes, {seconds(found.value_ms - bytes_ms)} fixed cost"
        saves = f", {found.sample_count} of {found.samples_needed} saves"
        return BASES.get(found.basis, found.basis) + (saves if found.sample_count else "")

    spent_ms = 0
    for name, term_ms, why in (
        ("handler", plan.handler_ms, "allowance"),
        ("quiesce", plan.quiesce.value_ms, base(plan.quiesce)),
        ("durable save", plan.durable.value_ms, base(plan.durable)),
        ("verify and commit", plan.commit.value_ms, base(plan.commit)),
        ("exit margin", plan.exit_margin_ms, "allowance"),
        ("clock skew", plan.clock_skew_ms, "allowance"),
    ):
        begin, spent_ms = _column(spent_ms, plan), spent_ms + term_ms
        bar = " " * begin + "#" * (_column(spent_ms, plan) - begin)
        yield f"{name:{TERM}}{seconds(term_ms):>10} |{bar:{WINDOW}}| {why}"
    yield f"{'needed':{TERM}}{seconds(plan.needed_ms):>10}   so the grace is {plan.grace_s} s"


def _column(at_ms: int, plan: Plan) -> int:
    return round(WINDOW * at_ms / max(1, plan.needed_ms))


def _log(plan: Plan) -> Iterator[str]:
    if not plan.windows:
        return
    yield ""
    yield f"From the {plan.sample_count} comparable saves on record"
    longest = max(found.window_ms for found in plan.windows)
    for found in plan.windows:
        bar = "#" * max(1, round(BAR * found.window_ms / longest))
        yield f"  {found.share:>4.0%} fit in {seconds(found.window_ms):>9}  {bar}{_bound(found)}"
    for chance in plan.chances:
        bar = "#" * round(BAR * chance.probability)
        yield f"  a window of {seconds(chance.window_ms):>9}: {chance.probability:>6.1%} fit  {bar}"


def _bound(found: Windows) -> str:
    if found.bound_ms is None:
        return f"  (no bound before {found.samples_needed} saves)"
    return f"  (at most {seconds(found.bound_ms)}, at 95 % confidence)"


def _row(label: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        f"  {label:{LABEL}}{text}",
        WIDTH,
        subsequent_indent=" " * (LABEL + 2),
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    )
