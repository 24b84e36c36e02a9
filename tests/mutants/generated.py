"""Mutants that a tool makes (mutmut's operators), each tried by the tests that reach it.

    python tests/mutants/generated.py [--every N] [--first N] [--only FILE[:LINE] ...] [--help]

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
from run import HEAVY, KILLED, NO_VERDICT, ROOT, judge, report
from swapped import NOT_SWAPPED, tried

MUTANT_S_MAX = 90
"""Many of those that are planted in files loop for ever. What comes to no end is tried again alone,
with more time."""

WORLD = ("tests/simulation/test_world.py", "tests/simulation/test_progress.py")
TESTS = ("tests/unit", "tests/properties", "tests/replay", *WORLD)


def files() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is mutated, and the tests that are run where a mutant is planted in its file."""
    for path in sorted((ROOT / "drainfsm" / "core").glob("*.py")):
        yield f"core/{path.name}", (*core_faults.TESTS, *WORLD)
    yield "store/commits.py", (*commit_faults.TESTS, *WORLD)
    yield "log/journal.py", (*log_faults.JOURNAL, *WORLD)


class Visitor(MutationVisitor):  # type: ignore[misc,unused-ignore]
    """Mutants of decorated functions, too, which mutmut cannot plant."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            return False
        return bool(super()._skip_node_and_children(node))


def planted_in(file: str, tests: tuple[str, ...]) -> Iterator[Fault]:
    """Every mutant of the file."""
    wrapper = MetadataWrapper(cst.parse_module((ROOT / "drainfsm" / file).read_text()))
    visitor = Visitor(mutation_operators, IgnoredCode(set(), set(), set()))
    wrapper.visit(visitor)
    module, old = wrapper.module, wrapper.module.code
    tops = {child: top for top in module.body for child in _children(top)}
    texts = {top: module.code_for_node(top) for top in module.body}
    for made in visitor.mutations:
        child = made.contained_by_top_level_function
        if child is None or isinstance(made.original_node, cst.BaseString):
            continue
        top, changed = tops[child], child.deep_replace(made.original_node, made.mutated_node)
        if child is not top:
            body = [changed if each is child else each for each in top.body.body]
            changed = top.with_changes(body=top.body.with_changes(body=body))
        assert old.count(texts[top]) == 1
        new = old.replace(texts[top], module.code_for_node(changed))
        yield Fault(difference(old, new), f"drainfsm/{file}", old, new, tests)


def _children(top: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What mutmut takes for the outermost that holds a mutant."""
    if isinstance(top, cst.ClassDef):
        yield from top.body.body
    else:
        yield top


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
    parser.add_argument(
        "--only",
        nargs="*",
        default=[""],
        metavar="TEXT",
        help="FILE or FILE:LINE, where FILE is a part of its name",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="the quickest tests that reach a mutant, as many as take that long",
    )
    parser.add_argument(
        "--reached",
        type=Path,
        metavar="FILE",
        help="which tests reach which lines: written if it is not there, so that the next run need not "
        "find out as long as neither code nor tests change",
    )
    parser.add_argument("--tests", nargs="*", default=TESTS, metavar="PATH")
    parser.add_argument(
        "--functions", action="store_true", help="leave out what is not inside of a function"
    )
    options = parser.parse_args()
    began = time.monotonic()
    wanted = [text.partition(":") for text in options.only]
    named = [
        fault
        for file, tests in files()
        for lines in [{line for part, _, line in wanted if part in file}]
        for fault in (planted_in(file, tests) if lines else ())
        if "" in lines or fault.name.partition(":")[0] in lines
    ]
    faults = named[options.first :: options.every]
    chosen = [fault for fault in faults if not is_equivalent(fault)]
    same = len(faults) - len(chosen)
    print(f"{len(faults)} of {len(named)} mutants, {same} of them equivalent", flush=True)
    found = dict(
        tried(
            chosen,
            options.tests,
            jobs=options.jobs,
            tests_s=options.seconds,
            known=options.reached and options.reached.absolute(),
        )
    )
    planted = [mutant for mutant, verdict in found.items() if verdict.what == NOT_SWAPPED]
    if options.functions:
        print(f"{len(planted)} were left out")
        found, planted = {m: v for m, v in found.items() if m not in planted}, []
    if planted:
        for name in HEAVY:
            importlib.import_module(name)
    found |= judge(planted, jobs=options.jobs, seconds_max=MUTANT_S_MAX)
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
