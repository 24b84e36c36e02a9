"""Streams to and from an object store: parallel parts up, ranges down, bounded memory."""

from __future__ import annotations

import io
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import obstore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

PART_BYTES = 16 << 20
"""One part of an upload. S3 takes 10,000 parts: 160 GB an object."""

PARTS_IN_FLIGHT = 3
"""Uploads at once. A stream holds at most this many parts, one that is waiting, one that is being
handed over and one that is being filled: 96 MiB."""

BLOCK_BYTES = 4 << 20
BLOCKS_KEPT = 4
"""A reader keeps this many blocks, 16 MiB; longer reads bypass them."""

RANGE_BYTES = 8 << 20
RANGES_IN_FLIGHT = 4
"""A large read is cut into ranges that are fetched at once: 32 MiB."""

_END = b""


class Upload(io.RawIOBase):
    """A new object. ``finish`` makes it exist; ``abandon`` leaves nothing, not even parts."""

    def __init__(self, backend: Backend, path: str) -> None:
        super().__init__()
        self._backend = backend
        self._path = path
        self._size = 0
        self._filling = bytearray()
        self._parts: queue.Queue[bytes | BaseException] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._over = threading.Event()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._size += len(view)
        at = 0
        while at < len(view):
            room = PART_BYTES - len(self._filling)
            self._filling += view[at : at + room]
            at += room
            if len(self._filling) == PART_BYTES:
                self._hand_over(bytes(self._filling))
                self._filling.clear()
        return len(view)

    def finish(self) -> None:
        """Raises:
        Exception: of the backend; the object does not exist then.
        """
        if self._thread is None:
            obstore.put(self._backend, self._path, bytes(self._filling), use_multipart=False)
            return
        if self._filling:
            self._hand_over(bytes(self._filling))
        self._hand_over(_END)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self, error: BaseException) -> None:
        if self._thread is not None:
            if not self._over.is_set():
                self._offer(error)
            self._thread.join()

    def _hand_over(self, part: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="drainfsm-upload", daemon=True)
            self._thread.start()
        self._offer(part)
        if self._error is not None:
            raise self._error

    def _offer(self, part: bytes | BaseException) -> None:
        while not self._over.is_set():
            try:
                self._parts.put(part, timeout=0.1)
            except queue.Full:
                continue
            return

    def _run(self) -> None:
        try:
            obstore.put(
                self._backend,
                self._path,
                self._stream(),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_IN_FLIGHT,
            )
        except BaseException as error:  # raised again where the stream is written
            self._error = error
        finally:
            self._over.set()

    def _stream(self) -> Iterator[bytes]:
        """An error raised in here makes obstore abort the upload and delete its parts."""
        while True:
            part = self._parts.get()
            if isinstance(part, BaseException):
                raise part
            if part == _END:
                return
            yield part


class RangeReader(io.RawIOBase):
    """A seekable object: blocks are fetched when they are read, the newest few are kept."""

    def __init__(self, backend: Backend, path: str, size_bytes: int) -> None:
        super().__init__()
        self._backend = backend
        self._path = path
        self._size = size_bytes
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self._size - self._at))
        if wanted > BLOCK_BYTES:
            data = self._fetch(self._at, wanted)
        else:
            block, start = divmod(self._at, BLOCK_BYTES)
            data = self._block(block)[start : start + wanted]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _block(self, number: int) -> bytes:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        start = number * BLOCK_BYTES
        data = (
            self._fetch(start, min(BLOCK_BYTES, self._size - start)) if start < self._size else b""
        )
        self._blocks[number] = data
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return data

    def _fetch(self, start: int, length: int) -> bytes:
        return bytes(obstore.get_range(self._backend, self._path, start=start, length=length))


class ObjectRanges:
    """See ``Ranges``. Every byte is copied once, from the answer to where it belongs."""

    piece_bytes = RANGES_IN_FLIGHT * RANGE_BYTES

    def __init__(self, backend: Backend, path: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._backend = backend
        self._path = path
        self._pool = ThreadPoolExecutor(RANGES_IN_FLIGHT, thread_name_prefix="drainfsm-range")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read_into(self, offset: int, view: memoryview) -> None:
        if len(view) <= RANGE_BYTES:
            self._fetch(offset, view)
            return
        starts = range(0, len(view), RANGE_BYTES)
        fetching = [
            self._pool.submit(self._fetch, offset + at, view[at : at + RANGE_BYTES])
            for at in starts
        ]
        for fetched in fetching:
            fetched.result()

    def _fetch(self, offset: int, view: memoryview) -> None:
        if not view:
            return
        data = obstore.get_range(self._backend, self._path, start=offset, length=len(view))
        if len(data) != len(view):
            raise EOFError(f"the object ends at {offset + len(data)}")
        view[:] = memoryview(data)
