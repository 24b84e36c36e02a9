"""Accelerators of this machine, as far as the file system tells."""

from __future__ import annotations

import re
from pathlib import Path

_DEVICE = re.compile(r"nvidia\d+|accel\d+|neuron\d+")
"""NVIDIA GPUs, TPUs (also below /dev/accel) and Trainium; AMD's are counted by their KFD nodes."""


def accelerators(root: Path = Path("/")) -> int:
    """How many there are; in a container those that it was given. 0: none, or not known."""
    names = [*_names(root / "dev"), *_names(root / "dev/accel")]
    found = {name for name in names if _DEVICE.fullmatch(name)}
    return len(found) or _amd(root)


def _amd(root: Path) -> int:
    """KFD lists CPUs too; only GPUs have compute units."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    return sum(1 for name in _names(nodes) if _simd_count(nodes / name / "properties") > 0)


def _simd_count(path: Path) -> int:
    try:
        found = re.search(r"^simd_count (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _names(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
