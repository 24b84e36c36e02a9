"""Interpreters that are at hand on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

PYENV = Path.home() / ".pyenv" / "versions"


def python_of(version: str) -> str:
    """An interpreter that can make environments, on PATH or of pyenv; empty: there is none."""
    for found in _pythons(version):
        if subprocess.run([found, "-c", "import ssl, venv"], capture_output=True).returncode == 0:
            return found
    return ""


def _pythons(version: str) -> Iterator[str]:
    if found := shutil.which(f"python{version}"):
        yield found
    yield from map(str, sorted(PYENV.glob(f"{version}.*/bin/python"), reverse=True))
