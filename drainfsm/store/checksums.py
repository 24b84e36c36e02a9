"""Checksums of files: ``xxh3_128`` (fast), ``sha256``, or ``sha256_tree``.

``sha256_tree`` is the sha256 of the sha256 digests (32 bytes each) of the file's pieces of 4 MiB,
in their order; the last piece may be shorter, and an empty file has none. Several threads hash
pieces at once, which sha256 of a whole file does not admit.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from typing import BinaryIO, Protocol

from drainfsm.errors import ConfigError

READ_BYTES = 4 << 20
"""One read: large enough to be streamed, small enough to stay in the cache while hashed."""

LEAF_BYTES = 4 << 20
"""Of ``sha256_tree``: part of what its name means. Another size would be another algorithm."""

TREE_THREADS_MAX = 8


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_hasher(algorithm: str) -> Hasher:
    """Raises:
    ConfigError: unknown algorithm, or its package is not installed.
    """
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "sha256_tree":
        return _TreeHasher()
    if algorithm == "xxh3_128":
        try:
            import xxhash
        except ImportError as error:
            raise ConfigError(
                "checksum xxh3_128 needs the package xxhash: install it with "
                "`pip install 'drainfsm[torch]'`, or choose sha256_tree or sha256"
            ) from error
        return xxhash.xxh3_128()
    raise ConfigError(f"checksum {algorithm!r}: choose xxh3_128, sha256 or sha256_tree")


class _TreeHasher:
    """Holds a copy of what is being hashed: as many pieces as there are threads, and one."""

    def __init__(self) -> None:
        self._leaf = bytearray()
        self._leaves = hashlib.sha256()
        self._hashing: deque[Future[bytes]] = deque()

    def update(self, data: memoryview, /) -> None:
        view = memoryview(data).cast("B")
        while view:
            room = LEAF_BYTES - len(self._leaf)
            self._leaf += view[:room]
            view = view[room:]
            if len(self._leaf) == LEAF_BYTES:
                self._hash_leaf()

    def hexdigest(self) -> str:
        if self._leaf:
            self._hash_leaf()
        self._collect(keep=0)
        return self._leaves.hexdigest()

    def _hash_leaf(self) -> None:
        self._collect(keep=_tree_threads() - 1)
        self._hashing.append(_tree_pool().submit(_digest, self._leaf))
        self._leaf = bytearray()

    def _collect(self, *, keep: int) -> None:
        while len(self._hashing) > keep:
            self._leaves.update(self._hashing.popleft().result())


def _digest(leaf: bytearray) -> bytes:
    return hashlib.sha256(leaf).digest()


@cache
def _tree_pool() -> ThreadPoolExecutor:
    """One for all files: more threads than cores hash no faster."""
    return ThreadPoolExecutor(_tree_threads(), thread_name_prefix="drainfsm-hash")


def _tree_threads() -> int:
    return min(TREE_THREADS_MAX, len(os.sched_getaffinity(0)))


def available(algorithm: str) -> str:
    """``algorithm``, or sha256 where the package for it is not installed: a plain install saves
    just as well, only slower.

    Raises:
        ConfigError: there is no such algorithm.
    """
    if algorithm == "xxh3_128" and find_spec("xxhash") is None:
        return "sha256"
    new_hasher(algorithm)
    return algorithm


def checksum_of(stream: BinaryIO, *, algorithm: str) -> str:
    """``<algorithm>:<hex>`` of everything from here to the end of the stream."""
    hasher = new_hasher(algorithm)
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    while count := _read_into(stream, view):
        hasher.update(view[:count])
    return f"{algorithm}:{hasher.hexdigest()}"


def _read_into(stream: BinaryIO, view: memoryview) -> int:
    data = stream.read(len(view))
    view[: len(data)] = data
    return len(data)
