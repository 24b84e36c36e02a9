"""Checksums of files: ``xxh3_128`` (fast) or ``sha256``."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from typing import BinaryIO, Protocol

from drainfsm.errors import ConfigError

READ_BYTES = 4 << 20
"""One read: large enough to be streamed, small enough to stay in the cache while hashed."""


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_hasher(algorithm: str) -> Hasher:
    """Raises:
    ConfigError: unknown algorithm, or its package is not installed.
    """
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "xxh3_128":
        try:
            import xxhash
        except ImportError as error:
            raise ConfigError(
                "checksum xxh3_128 needs the package xxhash: install it with "
                "`pip install 'drainfsm[torch]'`, or choose sha256"
            ) from error
        return xxhash.xxh3_128()
    raise ConfigError(f"checksum {algorithm!r}: choose xxh3_128 or sha256")


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
