"""The processes of a job that a test runs, known by a variable in their environment."""

from __future__ import annotations

import os
from pathlib import Path

MARK = "TOY_JOB"
"""Environment variable of every process of a job."""


def pids_with(text: str) -> list[int]:
    """Processes of this user that have the text in the environment that they were started with."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                environment = Path("/proc", name, "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in environment:
                found.append(int(name))
    return found
