"""A checkpoint store on a file system: local disk, NFS, Lustre and their like.

Put-if-absent is a finished, fsynced temporary file given its name by ``link(2)``, which never
replaces. NFS may answer "exists" to a link that it has just made (the request was sent twice), so
the temporary file's own link count decides. Where there are no hard links, the object is created
with ``O_EXCL``; a reader can then see it unfinished, and a crash at that instant leaves it so.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from drainfsm.durable import (
    Directories,
    begin_writeback,
    preallocate,
    sync_directory,
    write_synced,
)
from drainfsm.errors import ConfigError, SlotTakenError, StoreError, StoreUnreachableError
from drainfsm.store.base import TEMPORARY_PREFIX, Ranges, check_name, check_prefix

STREAM_BUFFER_BYTES = 1 << 20
"""Small writes are gathered up to this size; larger ones pass through."""

WRITEBACK_BYTES = 8 << 20
"""The disk is told to begin after so many: it works while the next ones are hashed and copied."""

READ_BYTES = 4 << 20
"""One read of a large file: what is read is still in the cache when it is hashed."""

PRIVATE = 0o600
PUBLIC = 0o666
"""Less the umask."""

_NO_LINK = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""How file systems say that they have no hard links (link(2))."""

_ABSENT = (FileNotFoundError, NotADirectoryError)


@contextmanager
def _answering(action: str, path: Path) -> Iterator[None]:
    """Errors of the file system as one error of ours."""
    try:
        yield
    except OSError as error:
        raise StoreUnreachableError(
            f"cannot {action} {path}: {error.strerror or error}; "
            "check that the file system is mounted, writable and not full"
        ) from error


class PosixStore:
    """Objects are files below a root directory. See ``ObjectStore`` for what is promised."""

    def __init__(self, root: Path, *, link: Callable[[Path, Path], None] = os.link) -> None:
        """``link``: gives a file a second name; replaceable for file systems that cannot."""
        self.root = root.resolve()
        self.url = self.root.as_uri()
        self._link = link
        self._directories = Directories(self.root)

    def create(self, *, parents: bool = False) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"store {self.root}: it is a file; give a directory")
        with _answering("create", self.root):
            try:
                self._directories.create_root(parents=parents)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise ConfigError(
                    f"store {self.root}: {self.root.parent} does not exist. Is its file system "
                    "mounted? If the job is really to start in a new place, give --create-store"
                ) from error

    def put_if_absent(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _answering("create", path):
            self._directories.ensure(path.parent)
            temporary = self._temporary(path)
            write_synced(temporary, data)
            try:
                made = self._name_once(temporary, path, data)
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(path.parent)  # also where it was taken: what is seen must last
        if not made:
            raise SlotTakenError(f"{path} is there already")

    def put_private(self, name: str, data: bytes, *, replaces: bool) -> None:
        """Create a file that only its owner can read, or none. ``replaces``: whatever is there.

        Raises:
            ConfigError: the file system cannot keep others from reading it.
            SlotTakenError: it is there already, and is not to be replaced.
        """
        path = self._path(name)
        with _answering("write", path):
            self._directories.ensure(path.parent)
            temporary = self._temporary(path)
            write_synced(temporary, b"", mode=PRIVATE)
            try:
                if not _is_private(temporary):
                    raise ConfigError(f"{path.parent} cannot keep others from reading a file")
                temporary.unlink()
                write_synced(temporary, data, mode=PRIVATE)
                if replaces:
                    temporary.replace(path)
                elif not self._name_once(temporary, path, data, mode=PRIVATE):
                    raise SlotTakenError(f"{path} is there already")
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(path.parent)

    def is_private(self, name: str) -> bool:
        """Only its owner can read the object, which must exist."""
        path = self._path(name)
        with _answering("read", path):
            return _is_private(path)

    def _name_once(self, temporary: Path, path: Path, data: bytes, *, mode: int = PUBLIC) -> bool:
        """Give the finished file its name; False if somebody else has it."""
        try:
            self._link(temporary, path)
        except OSError as error:
            if temporary.stat().st_nlink > 1:
                return True  # the link was made, only its answer was lost
            if isinstance(error, FileExistsError):
                return False
            if error.errno not in _NO_LINK:
                raise
            try:
                write_synced(path, data, mode=mode)
            except FileExistsError:
                return False
        return True

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _answering("write", path):
            self._directories.ensure(path.parent)
            temporary = self._temporary(path)
            write_synced(temporary, data)
            try:
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync_directory(path.parent)

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        with _answering("read", path):
            try:
                return path.read_bytes()
            except _ABSENT:
                return None

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.get(name) for name in names]

    def list(self, prefix: str) -> dict[str, int]:
        top = self._tree(prefix)
        with _answering("list", top):
            return dict(_files(top, ""))

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        top = self._tree(prefix)
        with _answering("list", top):
            try:
                found = [name for name in os.listdir(top) if name > after]
            except _ABSENT:
                return []
        return sorted(name for name in found if not name.startswith(TEMPORARY_PREFIX))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with _answering("delete", path):
            try:
                path.unlink()
            except _ABSENT:
                return
            sync_directory(path.parent)

    def delete_tree(self, prefix: str) -> None:
        top = self._tree(prefix)
        if top == self.root:
            raise StoreError("refusing to delete the whole store: give a prefix")
        with _answering("delete", top):
            try:
                shutil.rmtree(top)
            except _ABSENT:
                return
            sync_directory(top.parent)

    def create_tree(self, prefix: str) -> None:
        top = self._tree(prefix)
        with _answering("create", top):
            try:
                self._directories.create(top)
            except FileExistsError as error:
                raise SlotTakenError(f"{top} is there already; a tree is used once") from error

    def directory(self, prefix: str) -> Path:
        """The directory of a tree, for somebody who writes into it without this store. It exists
        once this returns, and survives a power loss."""
        top = self._tree(prefix)
        with _answering("create", top):
            self._directories.ensure(top)
        return top

    @contextmanager
    def writer(self, name: str, *, size_bytes: int = 0) -> Iterator[BinaryIO]:
        path = self._path(name)
        with _answering("write", path):
            stream = io.BufferedWriter(_Flowing(path, "xb"), STREAM_BUFFER_BYTES)
            try:
                with stream:
                    if size_bytes:
                        preallocate(stream.fileno(), size_bytes)
                    yield stream
                    stream.flush()
                    if 0 < stream.tell() < size_bytes:
                        os.ftruncate(stream.fileno(), stream.tell())  # gives back what is over
                    os.fsync(stream.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            sync_directory(path.parent)

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        with self._path(name).open("rb") as stream:
            yield stream

    @contextmanager
    def ranges(self, name: str, *, size_bytes: int = 0) -> Iterator[Ranges]:
        fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield _FileRanges(fd)
        finally:
            os.close(fd)

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _tree(self, prefix: str) -> Path:
        return self.root / check_prefix(prefix)

    def _temporary(self, path: Path) -> Path:
        return path.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"


class _Flowing(io.FileIO):
    """A new file whose bytes the disk begins to write while more of them come."""

    _begun = 0
    _written = 0

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self._written += count
        if self._written - self._begun >= WRITEBACK_BYTES:
            begin_writeback(self.fileno(), self._begun, self._written - self._begun)
            self._begun = self._written
        return count


class _FileRanges:
    """See ``Ranges``."""

    piece_bytes = READ_BYTES

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size_bytes = os.fstat(fd).st_size

    def read_into(self, offset: int, view: memoryview) -> None:
        while view:
            count = os.preadv(self._fd, [view], offset)
            if count == 0:
                raise EOFError(f"the file ends at {offset}")
            offset, view = offset + count, view[count:]

    def ahead(self, spans: Iterable[tuple[int, int]]) -> _FileRanges:
        """The kernel reads ahead."""
        return self


def _is_private(path: Path) -> bool:
    return not path.stat().st_mode & 0o077


def _files(top: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Every file below ``top`` with its size, as it is on the server.

    The file is opened before it is measured: an NFS client may answer ``stat`` from a cache that
    does not know what another node wrote, but asks the server at every open (nfs(5),
    "close-to-open cache consistency").
    """
    try:
        entries = sorted(os.scandir(top), key=lambda entry: entry.name)
    except _ABSENT:
        return
    for entry in entries:
        if entry.name.startswith(TEMPORARY_PREFIX):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(top / entry.name, f"{prefix}{entry.name}/")
            continue
        try:
            fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:  # removed since the directory was read
            continue
        try:
            yield f"{prefix}{entry.name}", os.fstat(fd).st_size
        finally:
            os.close(fd)
