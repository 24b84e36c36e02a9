"""Tests what pyproject.toml declares: the lowest version of every dependency, and other Pythons.

    python tests/bounds/run.py            # what CI runs
    python tests/bounds/run.py lowest     # one of them

Each gets an environment of its own below .venv/, made again when its versions change, without
torch: its lowest version is the one that all other tests run with.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drainfsm_kit.environments import (
    PYTEST,
    ROOT,
    Environment,
    lowest_bounds,
    made,
    project,
    tested_versions,
)
from drainfsm_kit.pythons import python_of

LOWEST = "lowest"
PYTHONS = ("3.12", "3.13")

OF_DEVELOPERS = {"bench", "dev", "docs", "release"}
WITH_TORCH = {"demo", "torch"}
"""Extras; what else is in them is looked at all the same."""

FRAMEWORKS = {path.stem for path in (ROOT / "drainfsm" / "frameworks").glob("[a-z]*.py")}
"""They have environments of their own: ``tests/frameworks/run.py``."""

TOOLS = (*PYTEST, "jsonschema", "kubernetes-validate", "moto[events,s3,server,sqs]")
PURE, ALL = ("unit", "replay"), ("unit", "replay", "contracts", "adapters")
LEFT_OUT = ("test_bench", "test_docs", "test_kubernetes_manifests", "test_run_training")
"""They need torch or what only developers install, or no dependency at all."""


def environments() -> list[Environment]:
    table, pins = project(), tested_versions()
    for_users = [name for name in table["optional-dependencies"] if name not in OF_DEVELOPERS]
    lists = (table["dependencies"], *(table["optional-dependencies"][name] for name in for_users))
    lowest = lowest_bounds(line for one in lists for line in one)
    extras = sorted(set(for_users) - WITH_TORCH - FRAMEWORKS)
    others = sorted(_names(table, WITH_TORCH) - {"drainfsm", "torch"})
    install = ("--editable", f".[{','.join(extras)}]", *TOOLS, *others)
    return [
        Environment(LOWEST, sys.executable, install, pins | lowest),
        *(Environment(name, python_of(name), install, pins) for name in PYTHONS),
    ]


def _names(project: Mapping[str, Any], extras: set[str]) -> set[str]:
    lines = [line for name in extras for line in project["optional-dependencies"][name]]
    return {re.split(r"[\[<>=!~ ]", line)[0] for line in lines}


def files(tests: Sequence[str]) -> list[str]:
    """Those that need no torch."""
    found = [path for name in tests for path in sorted((ROOT / "tests" / name).glob("test_*.py"))]
    return [str(path.relative_to(ROOT)) for path in found if not _is_left_out(path)]


def _is_left_out(path: Path) -> bool:
    imports = re.search(r"^\s*(import|from) torch", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.name.startswith(LEFT_OUT) or imports is not None


def passes(environment: Environment, *, workers: int) -> bool:
    python = made(environment, below="bounds")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    tests = files(ALL if environment.name == LOWEST else PURE)
    return subprocess.run([*command, *tests], cwd=ROOT).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="environments; all of them where none is given")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args(arguments)
    failed: list[str] = []
    for environment in environments():
        if options.names and environment.name not in options.names:
            continue
        if not environment.python:
            print(f"{environment.name}: left out, there is no such Python on this machine")
            continue
        print(f"{environment.name}: {environment.python}", flush=True)
        if not passes(environment, workers=options.workers):
            failed.append(environment.name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
