"""What a power loss would leave: the bytes and the names that somebody had told the disk to keep.

No power failure can be made in a test. What can be seen is every ``fsync``: of a file, what was in
it then; of a directory, which names it held. Nothing else is promised to survive.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Names = dict[str, int]
"""Of a directory: the inode behind each."""


class Disk:
    """Watches ``os.fsync`` and ``os.fdatasync`` of the whole process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._contents: dict[int, str] = {}
        self._names: dict[int, Names] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def lost(self, top: Path) -> list[str]:
        """What is below ``top``, which is there for good, and would not be after a power loss."""
        return sorted(str(path.relative_to(top)) for path in self._lost(top))

    def back(self, top: Path) -> list[str]:
        """What was removed below ``top``, and would be there again."""
        kept = {
            directory / name
            for directory in (top, *(path for path in top.rglob("*") if path.is_dir()))
            for name in self._names.get(directory.stat().st_ino, {})
        }
        return sorted(str(path.relative_to(top)) for path in kept if not path.exists())

    def _lost(self, directory: Path) -> Iterator[Path]:
        kept = self._names.get(directory.stat().st_ino, {})
        for path in directory.iterdir():
            inode = path.lstat().st_ino
            if kept.get(path.name) != inode:
                yield path
            elif path.is_dir():
                yield from self._lost(path)
            elif self._contents.get(inode) != _digest(path):
                yield path

    def _watched(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def watched(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            inode = os.fstat(fd).st_ino
            if path.is_dir():
                names = {entry.name: entry.inode() for entry in os.scandir(path)}
                sync(fd)
                self._names[inode] = names
            elif path.exists():
                digest = _digest(path)
                sync(fd)
                self._contents[inode] = digest
            else:
                sync(fd)

        return watched


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
