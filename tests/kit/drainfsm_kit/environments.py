"""Virtual environments with the versions that ``pyproject.toml`` and ``constraints.txt`` name."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
PYTEST = ("pytest", "pytest-timeout", "pytest-xdist")

_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)")


class Environment(NamedTuple):
    name: str
    python: str
    """Its interpreter; empty: there is none on this machine."""

    install: tuple[str, ...]
    pins: Mapping[str, str]
    over: str = ""
    """An environment whose packages are seen in it, and not installed again; empty: none."""


def project() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)["project"]
    return table


def tested_versions() -> dict[str, str]:
    """Of ``constraints.txt``."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in text if line and not line.startswith("#"))


def lowest_bounds(lines: Iterable[str]) -> dict[str, str]:
    """Of requirements."""
    return {found[1]: found[2] for line in lines if (found := _BOUND.fullmatch(line))}


def made(environment: Environment, *, below: str) -> Path:
    """The interpreter of the environment, in a folder of its own under ``.venv/BELOW``, with
    everything installed; made again when its versions change."""
    folder = ROOT / ".venv" / below / environment.name
    python, stamp = folder / "bin" / "python", folder / "stamp"
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(environment.pins.items()))
    asked = (environment.name, environment.python, environment.install, environment.over)
    wanted = hashlib.sha256(f"{asked}\n{pins}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([environment.python, "-m", "venv", str(folder)], check=True)
    if environment.over:
        _put_over(python, environment.over)
    constraints = folder / "constraints.txt"
    constraints.write_text(pins, encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--constraint", str(constraints), *environment.install], check=True, cwd=ROOT
    )
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _put_over(python: Path, other: str) -> None:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    ours, theirs = (
        subprocess.run([one, "-c", where], check=True, capture_output=True, text=True).stdout
        for one in (str(python), other)
    )
    line = f"import site; site.addsitedir({theirs.strip()!r})\n"
    (Path(ours.strip()) / "over.pth").write_text(line, encoding="utf-8")
