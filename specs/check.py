"""Checks the models exhaustively, then each mutation of them: the named rule must be found broken.

    python specs/check.py                 # what CI runs: every check and every mutation
    python specs/check.py --large         # larger bounds: minutes to an hour
    python specs/check.py --only Commits  # one module
    python specs/check.py --show last_notice_wins   # the counterexample of a mutation

Exit code 0 only if every verdict is the expected one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from drainfsm_kit import tlc

MODELS = Path(__file__).parent / "models"
RULES = re.compile(r"^(INVARIANTS|PROPERTIES)\s+((?:\w+\s+)*?)(?=^[A-Z]+\b|\Z)", re.MULTILINE)
MUTATIONS_ONLY = {"Impatient"}
"""Actions that no correct behaviour takes."""

OUTPUT_LINES_MAX = 60


class Run(NamedTuple):
    """One run of TLC; without ``breaks`` everything must hold."""

    module: str
    config: str
    what: str
    fault: str = ""
    breaks: str = ""
    invariant: str = ""
    unused: tuple[str, ...] = ()
    """Actions that these bounds leave out; any other one must be taken."""

    @property
    def name(self) -> str:
        return f"{self.config}/{self.fault}" if self.fault else self.config


class Outcome(NamedTuple):
    run: Run
    verdict: tlc.Verdict
    wrong: str
    """Empty: as expected."""


def runs(*, large: bool) -> list[Run]:
    with (MODELS / "runs.toml").open("rb") as file:
        table = tomllib.load(file)
    if large:
        return [Run(**row) for row in table["large"]]
    return [Run(**row) for row in table["check"]] + [
        Run(what="", **row) for row in table["mutation"]
    ]


def rules_of(config: str) -> dict[str, str]:
    """Every rule of a configuration, with the keyword that it stands under."""
    text = (MODELS / f"{config}.cfg").read_text()
    return {name: found[1] for found in RULES.finditer(text) for name in found[2].split()}


def unmutated(todo: list[Run]) -> set[str]:
    """Rules of the checks that no mutation breaks: they may be vacuous."""
    checked = {rule for run in todo if not run.breaks for rule in rules_of(run.config)}
    return checked - {run.breaks for run in todo}


def mutated(run: Run) -> str:
    """The configuration with its fault, and with the one rule that the fault must break."""
    text = (MODELS / f"{run.config}.cfg").read_text()
    if text.count('Fault = "none"') != 1:
        raise SystemExit(f"{run.config}.cfg has no Fault to set")
    keyword = rules_of(run.config).get(run.breaks)
    if keyword is None:
        raise SystemExit(f"{run.config}.cfg does not check {run.breaks}")
    text = RULES.sub("", text).replace('Fault = "none"', f'Fault = "{run.fault}"')
    if keyword == "PROPERTIES":
        text = text.replace("SYMMETRY Symmetric\n", "")
    return f"{text.rstrip()}\n{keyword} {run.breaks}\n"


def carry_out(run: Run, *, workers: int, count_actions: bool) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        config = MODELS / f"{run.config}.cfg"
        if run.fault:
            config = scratch / f"{run.config}.cfg"
            config.write_text(mutated(run))
        verdict = tlc.run(
            MODELS / f"{run.module}.tla",
            config,
            scratch=scratch / "states",
            workers=workers,
            count_actions=count_actions,
            short=bool(run.fault),
            heap_mb=4_000 if workers > 1 else 1_000,
        )
    return Outcome(run, verdict, _wrong(run, verdict))


def _wrong(run: Run, verdict: tlc.Verdict) -> str:
    if not run.breaks:
        if verdict.exit_code != tlc.HOLDS:
            return f"{verdict.broken or 'TLC failed'}\n{_shortened(verdict)}"
        if unused := verdict.never_taken - MUTATIONS_ONLY - set(run.unused):
            return f"no behaviour takes {', '.join(sorted(unused))}"
        return ""
    if verdict.exit_code not in (tlc.INVARIANT_BROKEN, tlc.PROPERTY_BROKEN):
        return f"{run.breaks} was to be broken\n{_shortened(verdict)}"
    # TLC names a broken invariant; of the others there is only one in the configuration.
    if verdict.broken not in (run.breaks, "Temporal properties"):
        return f"{verdict.broken} is broken, not {run.breaks}\n{_shortened(verdict)}"
    return ""


def _shortened(verdict: tlc.Verdict) -> str:
    lines = verdict.output.splitlines()
    at = next((n for n, line in enumerate(lines) if line.startswith("Error:")), 0)
    return "\n".join(lines[at : at + OUTPUT_LINES_MAX])


def line(outcome: Outcome) -> str:
    run, verdict = outcome.run, outcome.verdict
    mark = "FAIL" if outcome.wrong else "ok  "
    counts = f"{verdict.state_count:>9,} states {verdict.wall_s:6.1f} s"
    if not run.breaks:
        depth = "" if verdict.depth is None else f", depth {verdict.depth}"
        generated = f"{verdict.generated_count:,} generated{depth}"
        return f"{mark} {run.name:34} holds    {counts}  {run.what} ({generated})"
    steps = len(re.findall(r"^State \d+:", verdict.output, re.MULTILINE))
    return f"{mark} {run.name:34} broken   {counts}  {run.breaks}, in {steps} states"


def at_once(todo: list[Run], job: Callable[[Run], Outcome], *, jobs: int) -> Iterator[Outcome]:
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        yield from pool.map(job, todo)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="larger bounds, no mutations")
    parser.add_argument("--only", default="", help="one module")
    parser.add_argument("--show", default="", help="print the counterexample of this fault")
    options = parser.parse_args()
    cpus = os.cpu_count() or 1
    todo = [run for run in runs(large=options.large) if options.only in ("", run.module)]
    if options.show:
        todo = [run for run in todo if run.fault == options.show]
    if not todo:
        sys.exit("nothing to check: see specs/models/runs.toml for the names")
    jobs, workers = (1, cpus) if options.large else (cpus, 1)

    def job(run: Run) -> Outcome:
        return carry_out(run, workers=workers, count_actions=not run.breaks and not options.large)

    if not options.large and (rules := unmutated(runs(large=False))):
        sys.exit(f"no mutation in runs.toml breaks {', '.join(sorted(rules))}")
    begin = time.monotonic()
    wrong: list[Outcome] = []
    states = 0
    for outcome in at_once(todo, job, jobs=jobs):
        print(line(outcome), flush=True)
        states += outcome.verdict.state_count
        if outcome.wrong:
            print(outcome.wrong)
            wrong.append(outcome)
        elif options.show:
            print(outcome.verdict.counterexample)
    elapsed_s = time.monotonic() - begin
    print(f"{len(todo)} runs, {states:,} states, {elapsed_s:.0f} s, {len(wrong)} not as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except tlc.TlcMissingError as error:
        sys.exit(str(error))
