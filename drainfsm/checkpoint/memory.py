"""How much host memory is still available here: the machine's, or what the cgroup leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")

RECLAIMABLE = ("inactive_file", "active_file")
"""Page cache that counts against a cgroup's limit and is given up under pressure."""


def free_host_bytes(root: Path | None = None) -> int | None:
    """The least of ``MemAvailable`` and what every cgroup above us leaves; None: not known.

    proc(5) for ``MemAvailable``; the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory for the
    rest. In a container the own cgroup is mounted as the root of the hierarchy.
    """
    root = ROOT if root is None else root
    known = [*_available(root), *_left_v2(root), *_left_v1(root)]
    return max(0, min(known)) if known else None


def _available(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield int(rest.split()[0]) * 1_024


def _left_v2(root: Path) -> Iterator[int]:
    for directory in _cgroups(root, root / "sys/fs/cgroup", controllers=""):
        limit, used = _number(directory / "memory.max"), _number(directory / "memory.current")
        if limit is not None and used is not None:
            yield limit - used + _reclaimable(directory, prefix="")


def _left_v1(root: Path) -> Iterator[int]:
    for directory in _cgroups(root, root / "sys/fs/cgroup/memory", controllers="memory"):
        limit = _number(directory / "memory.limit_in_bytes")
        used = _number(directory / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            yield limit - used + _reclaimable(directory, prefix="total_")


def _cgroups(root: Path, mount: Path, *, controllers: str) -> Iterator[Path]:
    """Our cgroup and every one above it, as far as they can be seen from here."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controllers not in names.split(","):
            continue
        own = mount / path.lstrip("/")
        if not own.is_dir():  # the path is the host's, and the mount a container's
            own = mount
        yield own
        while own != mount:
            own = own.parent
            yield own


def _reclaimable(directory: Path, *, prefix: str) -> int:
    wanted = {prefix + name for name in RECLAIMABLE}
    pairs = (line.split() for line in _read(directory / "memory.stat").splitlines())
    return sum(int(pair[1]) for pair in pairs if pair[0] in wanted)


def _number(path: Path) -> int | None:
    """None: there is no such file, or no limit (``max``)."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
