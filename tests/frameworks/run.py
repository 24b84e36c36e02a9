"""Runs the contract of ``drainfsm/frameworks`` with the frameworks themselves.

    python tests/frameworks/run.py                     # what CI runs: newest versions, one scenario
    python tests/frameworks/run.py --whole             # every scenario, newest and lowest versions
    python tests/frameworks/run.py --whole lowest -k lightning
    python tests/frameworks/run.py --only ray          # one that is too large to be among them

The frameworks go into environments of their own below .venv/frameworks, over the packages of
.venv, and never into that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from drainfsm_kit.environments import (
    ROOT,
    Environment,
    lowest_bounds,
    made,
    project,
    tested_versions,
)
from drainfsm_kit.framework_contract import INSTALLED, SCOPE, Framework
from drainfsm_kit.frameworks import FRAMEWORKS

NEWEST, LOWEST = "newest", "lowest"


def environment(name: str, frameworks: Sequence[Framework]) -> Environment:
    extras = project()["optional-dependencies"]
    lines = [line for one in frameworks for line in extras.get(one.name, ())]
    lines += [line for one in frameworks for line in one.beside]
    wanted = sorted({line for line in lines if not line.startswith("drainfsm")})
    pins = tested_versions()
    if name == LOWEST:
        pins |= lowest_bounds(wanted)
    folder = f"{name}-{frameworks[0].name}" if len(frameworks) == 1 else name
    return Environment(folder, sys.executable, tuple(wanted), pins, over=sys.executable)


def passes(
    name: str, frameworks: Sequence[Framework], *, whole: bool, workers: int, chosen: str
) -> bool:
    python = made(environment(name, frameworks), below="frameworks")
    variables = {
        INSTALLED: ",".join(one.name for one in frameworks),
        SCOPE: "whole" if whole else "quick",
        "PATH": f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}",  # nats-server
    }
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    done = subprocess.run(
        [*command, "-k", chosen, "tests/frameworks"], cwd=ROOT, env={**os.environ, **variables}
    )
    return done.returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="VERSIONS", help=f"{NEWEST}, {LOWEST}")
    parser.add_argument("--whole", action="store_true", help="every scenario")
    parser.add_argument("--workers", type=int, help="default: 2, and 1 with --only")
    parser.add_argument("--only", default="", metavar="NAME", help="one framework, by itself")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="of pytest: which tests")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {NEWEST, LOWEST}:
        parser.error(f"{', '.join(sorted(unknown))}: choose {NEWEST}, {LOWEST}")
    frameworks = [one for one in FRAMEWORKS if not one.apart]
    if options.only:
        frameworks = [one for one in FRAMEWORKS if one.name == options.only]
        if not frameworks or options.only not in project()["optional-dependencies"]:
            parser.error(
                f"--only {options.only}: no framework that an extra installs; where one is "
                "installed otherwise, run pytest tests/frameworks -k NAME"
            )
    chosen = options.k or options.only
    names = options.names or ([NEWEST, LOWEST] if options.whole else [NEWEST])
    failed = []
    for name in names:
        print(f"frameworks, {name} versions", flush=True)
        whole, workers = options.whole, options.workers or (1 if options.only else 2)
        if not passes(name, frameworks, whole=whole, workers=workers, chosen=chosen):
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
