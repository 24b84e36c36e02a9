"""Files that a job wrote by itself: found, hashed, made durable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

from drainfsm.core.manifest import Entry
from drainfsm.durable import sync_directory
from drainfsm.errors import SaveFailedError, StoreError
from drainfsm.store import PosixStore
from drainfsm.store.base import TEMPORARY_PREFIX, check_name
from drainfsm.store.checksums import checksum_of
from drainfsm.store.generations import MANIFEST, generation_prefix

WrittenFiles = Mapping[str, str] | Iterable[str] | None
"""What a saver returns: the names of its files, with or without checksums; None: all it finds."""

_CHECKSUM = re.compile(r"xxh3_128:[0-9a-f]{32}|sha256(?:_tree)?:[0-9a-f]{64}")


def begin_directory(store: PosixStore, generation_id: str, *, rank: int, shared: bool) -> Path:
    """The directory that this rank is to write into, for the first and only time.

    Raises:
        SaveFailedError: the rank, or one before it, began this generation already.
    """
    prefix = generation_prefix(generation_id)
    top = store.directory(prefix)
    try:
        # Stays for good: ranks that were restarted meanwhile find it, and no listing shows it.
        (top / f"{TEMPORARY_PREFIX}began-{rank:05d}").mkdir()
    except FileExistsError as error:
        raise SaveFailedError(f"{top} was begun before: a generation is written once") from error
    return top if shared else store.directory(prefix + f"{rank_directory(rank)}/")


def rank_directory(rank: int) -> str:
    return f"rank{rank:05d}"


def names_files(said: object) -> bool:
    """It is a list of names, or a mapping of them."""
    return isinstance(said, Iterable) and not isinstance(said, str)


def found_files(directory: Path, said: WrittenFiles) -> dict[str, str]:
    """Name below ``directory`` to the checksum that the saver gave, empty where it gave none.

    Raises:
        SaveFailedError: a file is missing, is not a plain file, or has a name that cannot be kept.
    """
    if said is None:
        names = dict.fromkeys(_walk(directory, ""), "")
    elif not names_files(said):
        raise SaveFailedError(
            f"save() returned {said!r}: return a list of names, a mapping of names to checksums, "
            "or nothing"
        )
    elif isinstance(said, Mapping):
        names = {str(name): checksum for name, checksum in said.items()}
    else:
        names = {str(name): "" for name in said}
    for name, checksum in names.items():
        _check_file(directory, name)
        if checksum and not _CHECKSUM.fullmatch(checksum):
            raise SaveFailedError(
                f"{name}: checksum {checksum!r} is not xxh3_128:<hex>, sha256:<hex> or "
                "sha256_tree:<hex>"
            )
    return names


def _check_file(directory: Path, name: str) -> None:
    try:
        check_name(name)
    except StoreError as error:
        raise SaveFailedError(f"save(): {error}") from error
    path = directory / name
    if name == MANIFEST:
        raise SaveFailedError(f"{name}: this name is taken; call the file something else")
    if any(part.is_symlink() for part in (path, *path.parents) if part.is_relative_to(directory)):
        raise SaveFailedError(f"{path} is a symbolic link: a generation holds its own bytes")
    if not path.is_file():
        raise SaveFailedError(f"{path} is not a file, though save() has returned")


def _walk(top: Path, prefix: str) -> Iterator[str]:
    for entry in sorted(os.scandir(top), key=lambda entry: entry.name):
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{name}/")
        else:
            yield name


def make_durable(
    top: Path,
    names: Mapping[str, str],
    *,
    prefix: str,
    rank: int,
    algorithm: str,
    proceed: Callable[[], None],
) -> list[Entry]:
    """Make every byte and name below ``top`` durable, and hash the files meanwhile.

    Raises:
        SaveFailedError: a file changed meanwhile, or ``proceed`` says that nobody wants it any
            more.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="drainfsm-sync") as pool:
        synced = pool.submit(_sync, top, names, proceed)
        entries = [
            _entry(top, name, given, prefix=prefix, rank=rank, algorithm=algorithm, proceed=proceed)
            for name, given in sorted(names.items())
        ]
        synced.result()
    return entries


def _entry(
    top: Path,
    name: str,
    given: str,
    *,
    prefix: str,
    rank: int,
    algorithm: str,
    proceed: Callable[[], None],
) -> Entry:
    with (top / name).open("rb") as stream:
        before = os.fstat(stream.fileno())
        watched = cast(BinaryIO, _Watched(stream, proceed))
        checksum = given or checksum_of(watched, algorithm=algorithm)
        after = os.fstat(stream.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SaveFailedError(f"{name} is still being written, though save() has returned")
    return Entry(name=prefix + name, size_bytes=after.st_size, checksum=checksum, rank=rank)


def _sync(top: Path, names: Iterable[str], proceed: Callable[[], None]) -> None:
    directories = {top}
    for name in names:
        proceed()
        path = top / name
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)  # whoever wrote the bytes: fsync is of the file, not of the descriptor
        finally:
            os.close(fd)
        directories.update(part for part in path.parents if part.is_relative_to(top))
    for directory in sorted(directories, reverse=True):
        sync_directory(directory)


class _Watched:
    """A stream whose reader stops when nobody wants the result any more."""

    def __init__(self, stream: BinaryIO, proceed: Callable[[], None]) -> None:
        self._stream = stream
        self._proceed = proceed

    def read(self, size: int) -> bytes:
        self._proceed()
        return self._stream.read(size)
