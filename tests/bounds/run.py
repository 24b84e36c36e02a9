"""Tests what pyproject.toml declares: the lowest version of every dependency, and other Pythons.

    python tests/bounds/run.py            # what CI runs
    python tests/bounds/run.py lowest     # one of them

Each gets an environment of its own below .venv/, made again when its versions change, without
torch: its lowest version is the one that all other tests run with.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PYENV = Path.home() / ".pyenv" / "versions"
LOWEST = "lowest"
PYTHONS = ("3.12", "3.13")

OF_DEVELOPERS = {"bench", "dev"}
WITH_TORCH = {"demo", "torch"}
"""Extras; what else is in them is looked at all the same."""

PYTEST = ("pytest", "pytest-timeout", "pytest-xdist")
TOOLS = (*PYTEST, "jsonschema", "kubernetes-validate", "moto[events,s3,server,sqs]")
PURE, ALL = ("unit", "replay"), ("unit", "replay", "contracts", "adapters")
LEFT_OUT = ("test_bench", "test_docs", "test_kubernetes_manifests", "test_run_training")
"""They need torch or what only developers install, or no dependency at all."""

_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)")


class Environment(NamedTuple):
    name: str
    python: str
    """Its interpreter; empty: there is none on this machine."""

    install: tuple[str, ...]
    pins: Mapping[str, str]
    tests: tuple[str, ...]


def environments() -> list[Environment]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in text if line and not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = lowest_bounds(project)
    extras = sorted(project["optional-dependencies"].keys() - OF_DEVELOPERS - WITH_TORCH)
    others = sorted(_names(project, WITH_TORCH) - {"drainfsm", "torch"})
    install = ("--editable", f".[{','.join(extras)}]", *TOOLS, *others)
    return [
        Environment(LOWEST, sys.executable, install, pins | lowest, ALL),
        *(Environment(name, python_of(name), install, pins, PURE) for name in PYTHONS),
    ]


def lowest_bounds(project: Mapping[str, Any]) -> dict[str, str]:
    """Of every requirement of the package, and of the extras that users install."""
    extras = project["optional-dependencies"]
    groups = [extras[name] for name in extras if name not in OF_DEVELOPERS]
    lines = [line for group in (project["dependencies"], *groups) for line in group]
    return {found[1]: found[2] for line in lines if (found := _BOUND.fullmatch(line))}


def _names(project: Mapping[str, Any], extras: set[str]) -> set[str]:
    lines = [line for name in extras for line in project["optional-dependencies"][name]]
    return {re.split(r"[\[<>=!~ ]", line)[0] for line in lines}


def python_of(version: str) -> str:
    """An interpreter that can make environments, on PATH or of pyenv."""
    for found in _pythons(version):
        if subprocess.run([found, "-c", "import ssl, venv"], capture_output=True).returncode == 0:
            return found
    return ""


def _pythons(version: str) -> Iterator[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    yield from map(str, sorted(PYENV.glob(f"{version}.*/bin/python"), reverse=True))


def made(environment: Environment) -> Path:
    """The interpreter of the environment, with everything installed."""
    folder = ROOT / ".venv" / "bounds" / environment.name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(environment.pins.items()))
    wanted = hashlib.sha256(f"{environment[:3]}\n{pins}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([environment.python, "-m", "venv", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(pins, encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--constraint", str(constraints), *environment.install], check=True, cwd=ROOT
    )
    stamp.write_text(wanted, encoding="utf-8")
    return python


def files(tests: Sequence[str]) -> list[str]:
    """Those that need no torch."""
    found = [path for name in tests for path in sorted((ROOT / "tests" / name).glob("test_*.py"))]
    return [str(path.relative_to(ROOT)) for path in found if not _is_left_out(path)]


def _is_left_out(path: Path) -> bool:
    imports = re.search(r"^\s*(import|from) torch", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.name.startswith(LEFT_OUT) or imports is not None


def passes(environment: Environment, *, workers: int) -> bool:
    python = made(environment)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    return subprocess.run([*command, *files(environment.tests)], cwd=ROOT).returncode == 0


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
