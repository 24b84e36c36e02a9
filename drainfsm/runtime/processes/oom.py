"""Whether the kernel has ended processes for want of memory: a SIGKILL alone does not say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


class OutOfMemory:
    """Compares the kernel's counters with what they were before."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._seen = dict(self._counts())

    def explanation(self) -> str:
        """Since the last look: ``out of memory, …``; empty: the kernel has killed nobody for it."""
        before, self._seen = self._seen, dict(self._counts())
        for where, count in self._seen.items():
            if count > before.get(where, 0):
                return f"out of memory, by the limit of {where}"
        return ""

    def _counts(self) -> Iterator[tuple[str, int]]:
        """The nearest first: a limit of the cgroup shows in its counter, and in the machine's."""
        for line in _read(self._root / "proc/self/cgroup").splitlines():
            _, names, path = line.split(":", 2)
            if names in ("", "memory"):
                mount = self._root / "sys/fs/cgroup" / names
                own = mount / path.lstrip("/")
                own = own if own.is_dir() else mount  # in a container the path is the host's
                for name in ("memory.events", "memory.oom_control"):
                    yield from _oom_kills(own / name, f"the cgroup {path}")
        yield from _oom_kills(self._root / "proc/vmstat", "this machine")


def _oom_kills(path: Path, where: str) -> Iterator[tuple[str, int]]:
    for line in _read(path).splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdecimal():
            yield where, int(count)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
