"""What a process uses, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_ms(pid: int) -> float:
    """User and system time so far; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * 1_000 / TICKS_PER_S


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    """``VmHWM``: at its most."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def peak_begins_mib() -> float:
    """What this process holds now; its ``VmHWM`` begins anew."""
    now = resident_mib(os.getpid())
    Path("/proc/self/clear_refs").write_text("5")
    return now


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
