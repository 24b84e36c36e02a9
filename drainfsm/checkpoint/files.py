"""Files of a generation as ``torch.distributed.checkpoint`` sees them: streams of the store.

What is written is hashed on the way, piece by piece, so that no byte is read twice.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, BinaryIO

from torch.distributed.checkpoint.filesystem import FileSystemBase

from drainfsm.checkpoint.archives import without_zip_checksums
from drainfsm.core.manifest import Entry
from drainfsm.errors import SaveFailedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.checksums import Hasher, new_hasher

PIECE_BYTES = 4 << 20
"""Hashed and written at a time, while it is in the cache. A save can be aborted in between."""


class HashingStream(io.RawIOBase):
    """Writes through to a stream of the store, and hashes."""

    def __init__(self, stream: BinaryIO, hasher: Hasher, proceed: Callable[[], None]) -> None:
        super().__init__()
        self.size_bytes = 0
        self._stream = stream
        self._hasher = hasher
        self._proceed = proceed

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            self._proceed()
            piece = view[start : start + PIECE_BYTES]
            self._hasher.update(piece)
            self._stream.write(piece)
        self.size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size_bytes


class GenerationFiles(FileSystemBase):
    """The file system of one generation; paths are names below its prefix."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        rank: int,
        algorithm: str = "xxh3_128",
        aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.entries: list[Entry] = []
        """Every file that is written and durable so far."""

        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._algorithm = algorithm
        self._aborted = aborted
        self._lock = threading.Lock()

    @contextmanager
    def create_stream(
        self, path: Any, mode: str, *, size_bytes: int = 0
    ) -> Generator[io.IOBase, None, None]:
        """``size_bytes``: how large it gets about; 0: not known."""
        if mode != "wb":
            raise AssertionError("a restore reads the store itself")
        name = f"{self._prefix}{path}"
        with self._store.writer(name, size_bytes=size_bytes) as raw:
            stream = HashingStream(raw, new_hasher(self._algorithm), self._proceed)
            with without_zip_checksums():
                yield stream
        entry = Entry(
            name=str(path),
            size_bytes=stream.size_bytes,
            checksum=f"{self._algorithm}:{stream._hasher.hexdigest()}",
            rank=self._rank,
        )
        with self._lock:
            self.entries.append(entry)

    def _proceed(self) -> None:
        if self._aborted():
            raise SaveFailedError("the save was given up")

    def concat_path(self, path: Any, suffix: str) -> str:
        return f"{path}{suffix}"

    def init_path(self, path: Any) -> str:
        return str(path)

    def rename(self, path: Any, new_path: Any) -> None:
        raise AssertionError("a file of a generation has one name")

    def mkdir(self, path: Any) -> None:
        """The generation's directory was created for this save, once."""

    def exists(self, path: Any) -> bool:
        return False  # the directory is new

    def rm_file(self, path: Any) -> None:
        raise AssertionError("a file of a generation stays")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True
