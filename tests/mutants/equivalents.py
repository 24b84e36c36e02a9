"""Generated mutants that change nothing anybody can see, by file and change, with the reason."""

from __future__ import annotations

LAST_CASE = "a match without its last case, which does nothing, does nothing there either"

SAME = "where both are the same, it does not matter which is taken"

EQUIVALENTS: dict[tuple[str, str], str] = {
    (
        "core/deadline.py",
        "budget = budget_of(state, now_unix_ms=0) -> budget = budget_of(state, now_unix_ms=1)",
    ): "only what the budget needs is read, and that does not depend on the time",
    (
        "core/deadline.py",
        (
            "return state.current.usable_deadline_unix_ms case _: return None -> "
            "return state.current.usable_deadline_unix_ms"
        ),
    ): LAST_CASE,
    (
        "core/decide_stop.py",
        (
            "if stated is not None and stated > deadline: -> "
            "if stated is not None and stated >= deadline:"
        ),
    ): SAME,
    (
        "core/fit.py",
        (
            "return (point.took_ms - first.took_ms) * run >= rise * (point.size_bytes - first.size_bytes) -> "
            "return (point.took_ms - first.took_ms) * run > rise * (point.size_bytes - first.size_bytes)"
        ),
    ): "a corner on the line through those beside it, or one that is there twice, bends nothing",
    (
        "core/handlers.py",
        "return one if one > other else other -> return one if one >= other else other",
    ): SAME,
    (
        "core/handlers.py",
        "return one if one < other else other -> return one if one <= other else other",
    ): SAME,
    (
        "core/handlers.py",
        (
            "revision = _larger(attempt.withdrawn.get(identity, 0), revision_of(event.revision)) -> "
            "revision = _larger(attempt.withdrawn.get(identity, 1), revision_of(event.revision))"
        ),
    ): "no revision is less than 1",
    (
        "core/handlers.py",
        (
            "if hold is None or hold.quiesce_by_unix_ms <= quiesce_by_unix_ms: -> "
            "if hold is None or hold.quiesce_by_unix_ms < quiesce_by_unix_ms:"
        ),
    ): SAME,
    (
        "core/handlers.py",
        "hold = drain.hold -> hold = None",
    ): "a cordon is recorded once, and nobody is held before it",
    (
        "core/lifecycle.py",
        (
            "return event.act_at_unix_ms > event.budget.now_unix_ms -> "
            "return event.act_at_unix_ms >= event.budget.now_unix_ms"
        ),
    ): "at that instant the row before it, which acts now, is taken",
    (
        "core/decide_stop.py",
        "found = stop.nodes[at : at + 1] -> found = stop.nodes[at : at + 2]",
    ): "only the first of them is looked at",
}
