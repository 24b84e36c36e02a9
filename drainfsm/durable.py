"""Makes bytes and names survive a power loss on a POSIX file system."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF})
"""What fsync of a directory raises on file systems that cannot do it (CIFS, some FUSE)."""


_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2)."""

_WRITE = 2
"""SYNC_FILE_RANGE_WRITE of sync_file_range(2)."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def sync_directory(path: Path) -> None:
    """Make the names in the directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(fd)


def preallocate(fd: int, size_bytes: int) -> None:
    """Take room for so much before it is written: a disk that is too full says so at once. The
    file's length stays. Does nothing on file systems that cannot do it.

    posix_fallocate would write to every block where the file system cannot.

    Raises:
        OSError: there is no room, or no quota for it.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None:
        return
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, _KEEP_SIZE, 0, size_bytes) and ctypes.get_errno() in _NO_ROOM:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def begin_writeback(fd: int, offset: int, size_bytes: int) -> None:
    """Have the disk begin with these bytes while others are still being written. Nothing is durable
    by it, and nothing is lost without it: not every file system can."""
    sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if sync_file_range is not None:
        sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        sync_file_range(fd, offset, size_bytes, _WRITE)


def make_directory(path: Path) -> None:
    """Create it with its parents, each entry durable. An existing one is left alone."""
    for directory in reversed((path, *path.parents)):
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            sync_directory(directory.parent)


def write_synced(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Create the file, which must not exist, with its content durable. Its name is not yet.

    A failure (disk full) leaves no file.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class Directories:
    """Makes directories below a root and remembers which ones are known to be durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: set[Path] = set()

    def ensure(self, path: Path) -> None:
        """The directory and everything above it below the root exist, and survive a power loss.
        FileNotFoundError: the root does not exist; only ``create_root`` makes it."""
        if path in self._durable and path.is_dir():
            return
        if path == self._root:
            os.stat(path)
        else:
            self.ensure(path.parent)
            path.mkdir(exist_ok=True)
        sync_directory(path.parent)
        self._durable.add(path)

    def create_root(self, *, parents: bool) -> None:
        """Create the root. FileNotFoundError: its parent does not exist, and is not to be made."""
        if not parents and not self._root.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._root.parent))
        if not self._root.is_dir():
            make_directory(self._root)
            self._durable.add(self._root)

    def create(self, path: Path) -> None:
        """Create a directory. FileExistsError: it is there already."""
        self.ensure(path.parent)
        path.mkdir()
        sync_directory(path.parent)
        self._durable.add(path)
