"""The one small interface that a checkpoint store has to offer, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from drainfsm.errors import StoreError

TEMPORARY_PREFIX = ".tmp-drainfsm-"
"""Objects that are being written. No listing shows them; clean-up may remove old ones."""


OVERLAPPING = 16
"""Requests at once, of many small objects."""


class Ranges(Protocol):
    """One object, read anywhere. Several threads may read at once."""

    size_bytes: int

    piece_bytes: int
    """Reading this much at a time is as fast as reading more."""

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill the view with what begins at the offset.

        Raises:
            EOFError: the object ends before the view is full.
        """

    def ahead(self, spans: Iterable[tuple[int, int]]) -> Ranges:
        """The same, for one thread that is going to read these stretches (first byte, and the one
        after the last), in this order. Where a read takes a while, they are fetched beforehand."""


class ObjectStore(Protocol):
    """Named objects under one root. Names are relative paths with forward slashes.

    A prefix is empty (everything) or ends with a slash. Every method may raise
    ``StoreUnreachableError``. After one the call may or may not have taken effect, now or later:
    it is settled by doing the same again, or by reading.
    """

    url: str
    """Canonical; names the store in events."""

    def create(self, *, parents: bool = False) -> None:
        """Create the root if there is none; nothing else does. ``parents``: its parents, too.

        Raises:
            ConfigError: its parent does not exist, or something else is in its place.
        """

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the object. Once this returns it is durable, whole, and cannot be replaced by
        another ``put_if_absent``.

        Raises:
            SlotTakenError: the object is there already, and durable.
        """

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object; durable once this returns. Readers see old or new."""

    def get(self, name: str) -> bytes | None:
        """The whole object; None where there is none."""

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        """The same of many, many at once."""

    def list(self, prefix: str) -> dict[str, int]:
        """Every object below the prefix: its name relative to the prefix, and its size."""

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        """Objects directly below the prefix whose names sort after ``after``, sorted. Cheaper
        than ``list``: no sizes, no descent."""

    def delete(self, name: str) -> None:
        """Remove the object; does nothing if there is none."""

    def delete_tree(self, prefix: str) -> None:
        """Remove everything below the prefix, which must not be empty."""

    def create_tree(self, prefix: str) -> None:
        """Begin a tree that must never have been used.

        Raises:
            SlotTakenError: something is there already.
        """

    def writer(self, name: str, *, size_bytes: int = 0) -> AbstractContextManager[BinaryIO]:
        """Stream a new object below a tree that exists. When the context ends it is durable; if
        it ends by an exception there is no object. ``size_bytes``: how large it gets about, so
        that the store can prepare for it; 0: not known."""

    def reader(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A seekable stream of the object.

        Raises:
            FileNotFoundError: there is no such object.
        """

    def ranges(self, name: str, *, size_bytes: int = 0) -> AbstractContextManager[Ranges]:
        """The object, to be read into memory that is there already. ``size_bytes``: how large it
        is, so that the store need not be asked; 0: not known.

        Raises:
            FileNotFoundError: there is no such object. With ``size_bytes`` the first read says so.
        """


def get_each(get: Callable[[str], bytes | None], names: Sequence[str]) -> Sequence[bytes | None]:
    """``ObjectStore.get_each`` where requests may overlap: what they wait for is the network."""
    if len(names) < OVERLAPPING:
        return [get(name) for name in names]
    with ThreadPoolExecutor(OVERLAPPING, thread_name_prefix="drainfsm-read") as pool:
        return list(pool.map(get, names))


def check_name(name: str) -> str:
    """``name``, if it stays below the root and is spelled in one way only.

    Raises:
        StoreError: it does not.
    """
    segments = name.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or "\0" in name or "\\" in name:
        raise StoreError(f"object name {name!r} is not a relative path below the store's root")
    if any(segment.startswith(TEMPORARY_PREFIX) for segment in segments):
        raise StoreError(f"object name {name!r} begins like a temporary object")
    return name


def check_prefix(prefix: str) -> str:
    """``prefix``, if it is empty or a valid name followed by a slash.

    Raises:
        StoreError: it is neither.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise StoreError(f"prefix {prefix!r} does not end with a slash")
        check_name(prefix[:-1])
    return prefix
