"""Simulated file systems: real directories, of which a power loss takes what was not synced.

The product opens, writes, links and syncs them itself. While a simulation runs, the system calls
that can wait, fail or promise something are its own for what lies below these directories:
``fsync`` takes its time and is remembered, ``pwrite`` may find the disk full, and descriptors
close when their simulated process dies.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drainfsm_kit.simulator.chance import Chance
from drainfsm_kit.simulator.fibers import Fibers, Resume
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.timeline import US_PER_MS, US_PER_S, Timeline
from drainfsm_kit.simulator.windows import Windows

SYNC_US = (300, 4_000)
WRITE_US = (20, 2_000)
SPLIT_PART = 20
"""Every so many-th write reaches the page cache in two pieces."""

MEMORY = Path("/dev/shm")
UNIQUE = re.compile(r"[0-9a-f]{32}")
"""In a name: made by chance that is not the seed's."""

Tree = dict[str, Any]
"""Names below a directory: bytes of a file, or another ``Tree``."""

_running: list[Path] = []


class Files:
    """All file systems of one simulation."""

    def __init__(self, timeline: Timeline, fibers: Fibers, chance: Chance, tally: Tally) -> None:
        top = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        self.base = top / f"drainfsm-simulated-{os.getpid()}-{len(_running)}"
        """The same in every run of a process: paths get into records."""

        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir()
        self._within = f"{self.base}/"
        _running.append(self.base)
        self.timeline = timeline
        self.fibers = fibers
        self.chance = chance
        self.tally = tally
        self._mounted: dict[str, FileSystem] = {}
        self._descriptors: dict[int, tuple[object, int]] = {}
        """Who opened it, and the inode."""

        self._nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        own: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "close": self._close,
            "fsync": self._fsync,
            "fdatasync": self._fsync,
            "pwrite": self._pwrite,
        }
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in own}
        for name, call in own.items():
            setattr(os, name, call)
        self._real_sleep, time.sleep = time.sleep, self._sleep

    def mount(self, name: str, *, kind: str) -> FileSystem:
        """``kind``: what its faults are called by."""
        self._mounted[name] = FileSystem(self, self.base / name, kind=kind)
        return self._mounted[name]

    def release(self, owner: object) -> None:
        """A process has ended: its descriptors are closed, and its locks let go of. Their numbers
        stay taken, since what it left behind may still close them."""
        for fd, (opener, inode) in list(self._descriptors.items()):
            if opener is owner:
                del self._descriptors[fd]
                if _inode(fd) == inode:
                    os.dup2(self._nowhere, fd)

    def dispose(self) -> None:
        for name, call in self._real.items():
            setattr(os, name, call)
        time.sleep = self._real_sleep
        for fd, (_, inode) in self._descriptors.items():
            if _inode(fd) == inode:
                os.close(fd)
        os.close(self._nowhere)
        _running.remove(self.base)
        shutil.rmtree(self.base, ignore_errors=True)

    def _found(self, fd: int) -> tuple[FileSystem, str] | None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not path.startswith(self._within):
            return None
        name, _, _ = path.removeprefix(self._within).partition("/")
        return self._mounted[name], path

    # --- system calls ---------------------------------------------------------------------------

    def _open(self, path: Any, *given: Any, **named: Any) -> int:
        fd: int = self._real["open"](path, *given, **named)
        if isinstance(path, str | Path) and str(path).startswith(self._within):
            self._descriptors[fd] = (self.fibers.owner, os.fstat(fd).st_ino)
        return fd

    def _close(self, fd: int) -> None:
        self._descriptors.pop(fd, None)
        self._real["close"](fd)

    def _fsync(self, fd: int) -> None:
        if (found := self._found(fd)) is None:
            self._real["fsync"](fd)
        else:
            found[0].sync(fd, found[1])

    def _sleep(self, seconds: Any) -> None:
        if self.fibers.inside:
            sleep_us = round(seconds * US_PER_S)
            self.fibers.block(lambda go: self.timeline.after(sleep_us, go))
        else:
            self._real_sleep(seconds)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:
        found = self._found(fd)
        if found is not None:
            data = data[: found[0].room_for(len(data))]
        written: int = self._real["pwrite"](fd, data, offset)
        return written


class FileSystem:
    def __init__(self, files: Files, top: Path, *, kind: str) -> None:
        top.mkdir()
        self.top = top
        self.faults = Windows(files.timeline)
        """``full``, ``hung``, ``slow``, ``lies`` (of a sync: it says that it is done)."""

        self.betrayed = False
        """Something was lost that it had said to have synced."""

        self._lied = False
        self._losses = 0
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        """What is synced, by inode."""

        self._files = files
        self._kind = kind
        self._chance = files.chance.stream(f"files/{kind}/{top.name}")

    # --- what processes do ----------------------------------------------------------------------

    def sync(self, fd: int, path: str) -> None:
        """Raises: OSError: the power was lost meanwhile."""
        found = os.fstat(fd)
        if not found.st_nlink:  # removed while it was open
            return
        inode = found.st_ino
        names = _names(path) if stat.S_ISDIR(found.st_mode) else None
        data = _read(path) if names is None else b""
        self._wait()
        if self.faults.active("lies") is not None:
            self._files.tally.hit(f"{self._kind}_fsync_lies")
            self._lied = True
        elif names is None:
            self._contents[inode] = data
        else:
            self._names[inode] = names

    def room_for(self, size_bytes: int) -> int:
        """How much of a write is done at once.

        Raises: OSError: nothing, the disk is full.
        """
        if self.faults.active("full") is not None:
            self._files.tally.hit(f"{self._kind}_full")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if not self._files.fibers.inside or self._chance.randrange(SPLIT_PART) or size_bytes < 2:
            return size_bytes
        takes_us = self._chance.randint(*WRITE_US)
        self._files.fibers.block(lambda go: self._files.timeline.after(takes_us, go))
        return self._chance.randint(1, size_bytes - 1)

    def _wait(self) -> None:
        """As long as a sync takes, where somebody can wait."""
        if not self._files.fibers.inside:
            return
        before = self._losses
        self._files.fibers.block(self._arrange)
        if self._losses != before:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _arrange(self, resume: Resume) -> None:
        takes_us = self._chance.randint(*SYNC_US)
        if (slow := self.faults.active("slow")) is not None:
            self._files.tally.hit(f"{self._kind}_slow")
            takes_us += slow.amount * US_PER_MS
        self._files.timeline.after(takes_us, self._reached, resume)

    def _reached(self, resume: Resume) -> None:
        if (hung := self.faults.active("hung")) is not None:
            self._files.tally.hit(f"{self._kind}_hung")
            self._files.timeline.at(hung.until_us, self._reached, resume)
        else:
            resume()

    # --- power ----------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """What was synced is left. Of the rest, any part of it."""
        self._losses += 1
        self.betrayed = self.betrayed or self._lied
        self._lied = False
        names, contents = _walk(self.top)
        left = self._left(self.top.stat().st_ino, "", names, contents)
        for child in self.top.iterdir():
            if child.is_dir():
                shutil.rmtree(child)
            else:
                child.unlink()
        _plant(self.top, left)
        self._names, self._contents = _walk(self.top)

    def _left(
        self, inode: int, place: str, names: dict[int, dict[str, int]], contents: dict[int, bytes]
    ) -> Tree:
        synced, now = self._names.get(inode, {}), names.get(inode, {})
        left: Tree = {}
        for name in sorted({*synced, *now}):
            own = UNIQUE.sub("", name)
            chance = random.Random(f"{self._kind}/{self._losses}/{place}/{own}")
            kept = chance.choice((synced.get(name), now.get(name)))
            if kept is None:
                continue
            if kept in names or kept in self._names:
                left[name] = self._left(kept, f"{place}/{name}", names, contents)
            else:
                left[name] = self._bytes(kept, contents, chance)
        return left

    def _bytes(self, inode: int, contents: dict[int, bytes], chance: random.Random) -> bytes:
        synced = self._contents.get(inode, b"")
        now = contents.get(inode, synced)
        if synced == now or not now.startswith(synced):
            return chance.choice((synced, now))
        tail_bytes = len(now) - len(synced)
        torn = now[: len(synced) + chance.randrange(tail_bytes)]
        left = chance.choice((synced, now, torn, synced + bytes(tail_bytes)))
        if left not in (synced, now):
            self._files.tally.hit("torn_tail")
        return left


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _names(directory: str) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory)}


def _walk(top: Path) -> tuple[dict[int, dict[str, int]], dict[int, bytes]]:
    """Everything as it is now: names by directory, bytes by file."""
    names, contents = {}, {}
    for directory, _, files in os.walk(top):
        names[os.stat(directory).st_ino] = _names(directory)
        for name in files:
            path = Path(directory, name)
            contents[path.stat().st_ino] = path.read_bytes()
    return names, contents


def _plant(top: Path, tree: Tree) -> None:
    for name, what in tree.items():
        if isinstance(what, bytes):
            (top / name).write_bytes(what)
        else:
            (top / name).mkdir()
            _plant(top / name, what)


def _inode(fd: int) -> int:
    """0: it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return 0
    return 0 if stat.S_ISCHR(found.st_mode) else found.st_ino
