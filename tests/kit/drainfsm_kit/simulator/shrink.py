"""From a failing plan to one with as few events as still fail."""

from __future__ import annotations

from collections.abc import Sequence

from drainfsm_kit.simulator.plan import Plan
from drainfsm_kit.simulator.simulation import Result, simulate

RUNS_MAX = 300
"""Simulations to spend on one failure: a few seconds."""


class Shrunk:
    """What is left of a failing plan, by the numbers of its events."""

    def __init__(self, plan: Plan, kept: frozenset[int], result: Result) -> None:
        self.plan = plan
        self.kept = kept
        self.result = result


def shrink(plan: Plan) -> Shrunk:
    """Leaves out events, first many at once, then one by one, while the same rule breaks.

    Raises:
        ValueError: the plan does not fail.
    """
    kept = frozenset(number for number, _ in plan.numbered())
    result = simulate(plan)
    if not result.problems:
        raise ValueError(f"seed {plan.seed} does not fail")
    rule, runs, size = rule_of(result.problems), 0, max(1, len(kept) // 2)
    while size:
        smaller = False
        for left_out in _chunks(sorted(kept), size):
            if runs >= RUNS_MAX:
                return Shrunk(plan, kept, result)
            runs += 1
            tried = simulate(plan.keep(kept - left_out))
            if rule in map(rule_name, tried.problems):
                kept, result, smaller = kept - left_out, tried, True
        size = size if smaller and size == 1 else size // 2
    return Shrunk(plan, kept, result)


def _chunks(numbers: Sequence[int], size: int) -> list[frozenset[int]]:
    return [frozenset(numbers[at : at + size]) for at in range(0, len(numbers), size)]


def rule_of(problems: Sequence[str]) -> str:
    """What is to go on failing: the first that broke."""
    return rule_name(problems[0])


def rule_name(problem: str) -> str:
    """``I7`` of ``epoch 2: I7: …``; the first words of what names no rule."""
    words = problem.replace(":", " ").split()
    named = [word for word in words if word[0] == "I" and word[1:].isdigit()]
    return named[0] if named else " ".join(words[1:4])
