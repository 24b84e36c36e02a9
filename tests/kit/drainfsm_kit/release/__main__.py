"""``python -m drainfsm_kit.release``: everything, into dist/; or ``--upgrade-from COMMIT``, or
``--record``.

Builds wheel and sdist (twice: they must be the same bytes), has twine and check-wheel-contents look
at them, installs the wheel alone into an empty environment of every Python at hand and drains a job
there, and writes a software bill of materials of what a user gets. With ``--upgrade-from`` a job
that was drained by the wheel of that commit is resumed by this one. With ``--record`` what this one
stores goes into the golden corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from drainfsm_kit.pythons import python_of
from drainfsm_kit.release.record import record, record_torch
from drainfsm_kit.release.smoke import smoke

ROOT = Path(__file__).parents[4]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--upgrade-from", metavar="COMMIT", help="only this: from its wheel to ours"
    )
    parser.add_argument(
        "--record", action="store_true", help="only this: what this version stores, tests/replay"
    )
    parser.add_argument("--pythons", default=",".join(PYTHONS))
    parser.add_argument("--quick", action="store_true", help="built once, and this Python alone")
    options = parser.parse_args(arguments)
    shutil.rmtree(DIST, ignore_errors=True)
    wheel, sdist = build(ROOT, DIST)
    if options.upgrade_from:
        say("upgrade", upgrade(options.upgrade_from, wheel))
        return 0
    if options.record:
        say("recorded", recorded(wheel))
        return 0
    if options.quick:
        options.pythons = ".".join(map(str, sys.version_info[:2]))
    else:
        check_same_again(wheel, sdist)
    check_contents(wheel, sdist)
    check_changelog(wheel)
    for version in options.pythons.split(","):
        if not (python := python_of(version)):
            say(f"Python {version}", "left out: it is not on this machine")
            continue
        say(f"Python {version}", in_empty_environment(python, wheel))
    return 0


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """The wheel is made from the sdist, as pip would."""
    run(sys.executable, "-m", "build", "--outdir", str(target), str(source))
    (wheel,) = target.glob("*.whl")
    (sdist,) = target.glob("*.tar.gz")
    return wheel, sdist


def check_same_again(wheel: Path, sdist: Path) -> None:
    """Whoever builds the same commit gets the same bytes, and can compare them with a signature."""
    with tempfile.TemporaryDirectory() as name:
        for first, second in zip((wheel, sdist), build(ROOT, Path(name)), strict=True):
            if digest(first) != digest(second):
                raise SystemExit(f"{first.name}: a second build has other bytes")
            say(first.name, f"sha256:{digest(first)}, {first.stat().st_size} bytes, twice the same")


def check_contents(wheel: Path, sdist: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    run(sys.executable, "-m", "check_wheel_contents", str(wheel))
    say("twine, check-wheel-contents", "nothing found")


def check_changelog(wheel: Path) -> None:
    """The version has a section, or one of what is unreleased; fragments can be built."""
    version = wheel.name.split("-")[1]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if version != project["version"]:
        raise SystemExit(f"the wheel has version {version}, pyproject.toml {project['version']}")
    if not re.search(rf"^## (Unreleased|{re.escape(version)} )", text, re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no section for {version}")
    drafted = run(
        *(sys.executable, "-m", "towncrier", "build", "--draft"),
        *("--version", version, "--date", "2000-01-01"),
    )
    say("changelog", f"{version}: {drafted.count(chr(10) + '- ')} fragment(s)")


def in_empty_environment(python: str, wheel: Path) -> str:
    """Installed with what it asks for and nothing else; a job drained and resumed there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        venv = installed(python, wheel, Path(name))
        told = smoke(venv, venv)
        if python_of("3.11") == python or Path(python).samefile(sys.executable):
            bill(venv, wheel)
    return f"{told}; {time.monotonic() - began:.0f} s"


def installed(python: str, wheel: Path, directory: Path, *more: str) -> Path:
    venv = directory / "venv"
    run(python, "-m", "venv", str(venv))
    inside = str(venv / "bin" / "python")
    run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel), *more)
    run(inside, "-m", "pip", "check", "--disable-pip-version-check")
    code = "import sys, drainfsm; assert not {'torch', 'nats'} & sys.modules.keys()"
    run(inside, "-W", "error", "-c", code, cwd=directory)
    return venv


def bill(venv: Path, wheel: Path) -> None:
    """CycloneDX, of the environment that a plain installation makes."""
    target = DIST / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    run(*command, "--of", "JSON", "-o", str(target), str(venv / "bin" / "python"))
    found = json.loads(target.read_text(encoding="utf-8"))
    names = {component["name"] for component in found["components"]}
    if not {"drainfsm", "msgspec", "nats-py", "transitions"} <= names:
        raise SystemExit(f"{target.name} lacks what the package asks for: {sorted(names)}")
    say(target.name, f"{len(names)} components: {', '.join(sorted(names))}")


def upgrade(commit: str, wheel: Path) -> str:
    """From the wheel of that commit to this one, in one store and one state directory."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = directory / "source"
        source.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        former, _ = build(source, directory / "dist")
        # xxhash: the first commits did not do without.
        old = installed(sys.executable, former, _made(directory / "old"), "xxhash")
        new = installed(sys.executable, wheel, _made(directory / "new"))
        return f"{commit}: {smoke(old, new)}"


def recorded(wheel: Path) -> str:
    with tempfile.TemporaryDirectory() as name:
        venv = installed(sys.executable, wheel, Path(name))
        version, corpus = wheel.name.split("-")[1], ROOT / "tests" / "replay"
        return f"{record(venv, version, corpus)}; {record_torch(version, corpus)}"


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def run(*command: str, cwd: Path = ROOT) -> str:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def say(what: str, text: str) -> None:
    sys.stdout.write(f"{what}: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
