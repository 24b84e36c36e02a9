"""Mutants that a tool makes (mutmut's operators), run as the faults that were made by hand are.

    python tests/mutants/generated.py [--every N] [--first N] [--only TEXT] [--jobs N]

Of ``core/``, ``store/commits.py`` and ``log/journal.py``: every N-th one, from the given one on.
Those whose change nobody can see are listed in ``equivalents.py``, with the reason. Texts of
messages and what stands outside of functions are left out. Exit code 1 if one survives.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import commit_faults
import core_faults
import libcst as cst  # type: ignore[import-not-found,unused-ignore]
import log_faults
from equivalents import EQUIVALENTS
from fault import Fault
from libcst.metadata import MetadataWrapper  # type: ignore[import-not-found,unused-ignore]
from mutmut.mutation.file_mutation import (  # type: ignore[import-not-found,unused-ignore]
    MutationVisitor,
)
from mutmut.mutation.mutators import (  # type: ignore[import-not-found,unused-ignore]
    mutation_operators,
)
from mutmut.mutation.pragma_handling import (  # type: ignore[import-not-found,unused-ignore]
    IgnoredCode,
)
from run import HEAVY, KILLED, NO_VERDICT, ROOT, clean, judge, report

UNIT = "tests/unit/"
TRIED_FIRST = {
    "core/backoff.py": ("test_backoff.py",),
    "core/budget.py": ("test_budget.py",),
    "core/codec.py": ("test_codec.py",),
    "core/deadline.py": ("test_deadline.py", "test_assumed_deadlines.py", "test_decider.py"),
    "core/exit_plan.py": ("test_exit_plan.py",),
    "core/explain.py": ("test_replay.py", "test_words.py"),
    "core/failures.py": ("test_runtime_processes.py",),
    "core/fit.py": ("test_budget.py",),
    "core/fold.py": ("test_fold.py",),
    "core/inputs.py": ("test_decider_refusals.py",),
    "core/lifecycle.py": ("test_machine.py", "test_fold.py"),
    "core/manifest.py": ("test_manifest.py",),
    "core/notice.py": ("test_last_acts.py",),
    "core/orders.py": ("test_checkpoint_progress.py", "test_settings.py"),
    "core/overslept.py": ("test_overslept.py",),
    "core/quantiles.py": ("test_budget.py",),
    "core/requeue.py": ("test_requeueing.py",),
    "core/requirement.py": ("test_requirement.py",),
    "core/rules.py": ("test_rules.py",),
    "core/text.py": ("test_output.py", "test_words.py"),
    "core/words.py": ("test_words.py",),
}
"""Unit tests of that module itself."""

MUTANT_S_MAX = 90
"""Many of them loop for ever. What comes to no end is tried again alone, with more time."""

WORLD = ("tests/simulation/test_world.py", "tests/simulation/test_progress.py")
"""Tried last."""


def files() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is mutated, and the tests of which one must notice it."""
    for path in sorted((ROOT / "drainfsm" / "core").glob("*.py")):
        file = f"core/{path.name}"
        own = tuple(UNIT + name for name in TRIED_FIRST.get(file, ()))
        yield file, tuple(dict.fromkeys((*own, *core_faults.TESTS, *WORLD)))
    yield "store/commits.py", (*commit_faults.TESTS, *WORLD)
    yield "log/journal.py", (*log_faults.JOURNAL, *WORLD)


class Mutant(NamedTuple):
    file: str
    tests: tuple[str, ...]
    module: cst.Module
    before: cst.CSTNode
    after: cst.CSTNode

    def planted(self) -> Fault:
        changed = self.module.deep_replace(self.before, self.after)
        assert isinstance(changed, cst.Module)
        old, new = self.module.code, changed.code
        return Fault(difference(old, new), f"drainfsm/{self.file}", old, new, self.tests)


def mutants(file: str, tests: tuple[str, ...]) -> Iterator[Mutant]:
    wrapper = MetadataWrapper(cst.parse_module((ROOT / "drainfsm" / file).read_text()))
    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    wrapper.visit(visitor)
    for made in visitor.mutations:
        inside = made.contained_by_top_level_function is not None
        if inside and not isinstance(made.original_node, cst.BaseString):
            yield Mutant(file, tests, wrapper.module, made.original_node, made.mutated_node)


def is_equivalent(fault: Fault) -> bool:
    change = fault.name.partition(": ")[2]
    return (fault.file.removeprefix("drainfsm/"), change) in EQUIVALENTS


def difference(old: str, new: str) -> str:
    """``LINE: what stood there -> what stands there``."""
    before, after = old.splitlines(), new.splitlines()
    first = next(
        (n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]),
        min(len(before), len(after)) - 1,
    )
    last = 1
    while last < len(after) - first and before[-last] == after[-last]:
        last += 1
    was = " ".join(line.strip() for line in before[first : len(before) - last + 1])
    now = " ".join(line.strip() for line in after[first : len(after) - last + 1])
    return f"{first + 1}: {was} -> {now}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="files with this text in their name")
    parser.add_argument(
        "--unchecked", action="store_true", help="the tests are taken to pass without a mutant"
    )
    options = parser.parse_args()
    began = time.monotonic()
    made = [
        mutant for file, tests in files() if options.only in file for mutant in mutants(file, tests)
    ]
    faults = [mutant.planted() for mutant in made[options.first :: options.every]]
    chosen = [fault for fault in faults if not is_equivalent(fault)]
    same = len(faults) - len(chosen)
    print(f"{len(faults)} of {len(made)} mutants, {same} of them equivalent", flush=True)
    for name in HEAVY:
        importlib.import_module(name)
    if not options.unchecked and not clean(chosen):
        return 2
    found = judge(chosen, jobs=options.jobs, seconds_max=MUTANT_S_MAX)
    again = [mutant for mutant, verdict in found.items() if verdict.what == NO_VERDICT]
    found |= judge(again, jobs=1)
    report(found)
    for mutant, verdict in found.items():
        if verdict.what != KILLED:
            print(f"{verdict.what}  {Path(mutant.file).name} {mutant.name}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(verdict.what != KILLED for verdict in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
