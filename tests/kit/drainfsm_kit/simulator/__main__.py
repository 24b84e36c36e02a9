"""``python -m drainfsm_kit.simulator``: many seeds, one seed, or one large drain."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import time
from collections.abc import Sequence

from drainfsm_kit.simulator import report
from drainfsm_kit.simulator.many import run_many
from drainfsm_kit.simulator.scale import SIZES, measure
from drainfsm_kit.simulator.seeds import plan_of
from drainfsm_kit.simulator.shrink import shrink
from drainfsm_kit.simulator.simulation import simulate
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.told import told_by

FAILURES_SHOWN = 3
COVERING_SEEDS = 1_000
"""So many must show every outcome and every class of faults."""


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    if given.scale is not None:
        return _scale(given.scale or SIZES)
    if given.measures:
        _say(told_by(range(given.first, given.first + given.seeds)).lines())
        return 0
    if given.seed is not None:
        return _one(given.seed, given.keep)
    return _many(given.first, given.seeds, given.jobs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m drainfsm_kit.simulator",
        description="The real coordinator, agents and log in a simulated world that misbehaves.",
    )
    parser.add_argument("--seeds", type=int, default=2_000, help="how many (default: 2000)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default: 1)")
    parser.add_argument("--jobs", type=int, help="processes (default: one a processor)")
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument(
        "--keep", type=_numbers, help="of the seed's events only these (numbers, or none)"
    )
    parser.add_argument(
        "--measures",
        action="store_true",
        help="what `drainfsm report` says of the seeds, beside what was true",
    )
    parser.add_argument(
        "--scale",
        type=int,
        nargs="*",
        metavar="RANKS",
        help="one drain each of jobs of so many ranks (default: 8 to 16384)",
    )
    return parser


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(",") if number not in ("", "none"))


def _say(lines: object) -> None:
    for line in lines if not isinstance(lines, str) else (lines,):  # type: ignore[attr-defined]
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _many(first: int, count: int, jobs: int | None) -> int:
    began, tally, failed = time.monotonic(), Tally(), dict[int, str]()
    for part, wrong in run_many(first, count, jobs=jobs):
        tally.add(part)
        for seed, problem in wrong.items():
            failed[seed] = problem
            if len(failed) <= FAILURES_SHOWN:
                _show_failure(seed, problem)
    _say(report.summary(tally))
    holes = report.missing(tally) if count >= COVERING_SEEDS else []
    for hole in holes:
        _say(f"NOT COVERED: {hole}")
    took_s = time.monotonic() - began
    _say(f"\nseeds {first} to {first + count - 1} in {took_s:.0f} s: {len(failed)} failed")
    if len(failed) > FAILURES_SHOWN:
        _say(f"failing seeds: {', '.join(map(str, sorted(failed)))}")
    return 1 if failed or holes else 0


def _show_failure(seed: int, problem: str) -> None:
    try:
        _say(report.failure(shrink(plan_of(seed))))
    except Exception as error:  # it failed by an exception: nothing to shrink by
        _say(f"seed {seed}: {problem}\n  ({error!r} while shrinking)\n  reproduce:")
        _say(f"    python -m drainfsm_kit.simulator --seed {seed}")


def _one(seed: int, keep: frozenset[int] | None) -> int:
    plan = plan_of(seed)
    result = simulate(plan if keep is None else plan.keep(keep))
    if result.problems and keep is None:
        _say(report.failure(shrink(plan)))
        return 1
    for number, event in plan.numbered():
        if keep is None or number in keep:
            _say(f"{number:>2}  {report.told(event)}")
    _say(report.history(result))
    _say(report.summary(result.tally))
    for problem in result.problems:
        _say(f"WRONG: {problem}")
    return 1 if result.problems else 0


def _scale(sizes: Sequence[int]) -> int:
    costs = []
    gc.disable()  # it would measure the simulator's own objects
    for size in sizes:
        costs.append(measure(size))
        gc.collect()
    gc.enable()
    _say(report.table(costs))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has enough is no error
    sys.exit(main())
