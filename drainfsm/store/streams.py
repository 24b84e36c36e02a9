"""Streams to and from an object store: parallel parts up, ranges down, bounded memory."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import obstore

from drainfsm.store.pace import StorePace

if TYPE_CHECKING:
    from obstore import Bytes
    from obstore.store import ObjectStore as Backend

Buffer = bytes | bytearray

Connect = Callable[[int], "Backend"]
"""A client of the store that waits so many seconds for an answer, and then asks again."""

PART_BYTES = (5 << 20, 8 << 20)
"""One part of an upload. S3 takes none that is smaller, but for the last."""

UPLOAD_BYTES = 40 << 20
"""Parts of one stream that are under way. Beside them it holds the part that is being gathered, and
a few pieces: 60 MiB."""

PIECE_BYTES = 4 << 20
"""Handed over at a time."""

BLOCK_BYTES = 4 << 20
BLOCKS_KEPT = 4
"""A reader keeps this many blocks, 16 MiB; longer reads bypass them."""

RANGE_BYTES = (1 << 20, 4 << 20)
"""A large read is cut into ranges that are fetched at once."""

READ_BYTES = 16 << 20
"""Ranges of one object that are under way."""

SHORT_TRIES = 3
"""An answer that is too short is no proof that the object is: it is asked for so often."""

_END = b""


class Upload(io.RawIOBase):
    """A new object. ``finish`` makes it exist; ``abandon`` leaves nothing, not even parts."""

    def __init__(self, connect: Connect, path: str, pace: StorePace, size_bytes: int = 0) -> None:
        """``size_bytes``: how large it gets about; 0: not known."""
        super().__init__()
        self._connect = connect
        self._path = path
        self._pace = pace
        self._flight = pace.flight(size_bytes)
        self._size = 0
        self._filling = bytearray()
        self._pieces: queue.Queue[Buffer | BaseException] = queue.Queue(maxsize=1)
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
            room = PIECE_BYTES - len(self._filling)
            self._filling += view[at : at + room]
            at += room
            if len(self._filling) == PIECE_BYTES:
                self._hand_over(self._filling)
                self._filling = bytearray()
        return len(view)

    def finish(self) -> None:
        """Raises:
        Exception: of the backend; the object does not exist then.
        """
        if self._thread is None:
            data = bytes(self._filling)
            obstore.put(self._backend, self._path, data, use_multipart=False)
            return
        if self._filling:
            self._hand_over(self._filling)
        self._hand_over(_END)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self, error: BaseException) -> None:
        if self._thread is not None:
            if not self._over.is_set():
                self._offer(error)
            self._thread.join()

    @property
    def _backend(self) -> Backend:
        return self._connect(self._flight.answer_s)

    def _hand_over(self, piece: Buffer) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="drainfsm-upload", daemon=True)
            self._thread.start()
        self._offer(piece)
        if self._error is not None:
            raise self._error

    def _offer(self, piece: Buffer | BaseException) -> None:
        while not self._over.is_set():
            try:
                self._pieces.put(piece, timeout=0.1)
            except queue.Full:
                continue
            return

    def _run(self) -> None:
        began = time.monotonic()
        try:
            obstore.put(
                self._backend,
                self._path,
                self._stream(),
                use_multipart=True,
                chunk_size=self._flight.part_bytes,
                max_concurrency=self._flight.at_once,
            )
            self._pace.note(self._size, time.monotonic() - began)
        except BaseException as error:  # raised again where the stream is written
            self._error = error
        finally:
            self._over.set()

    def _stream(self) -> Iterator[Buffer]:
        """An error raised in here makes obstore abort the upload and delete its parts."""
        while True:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            if piece == _END:
                return
            yield piece


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

    piece_bytes = READ_BYTES

    def __init__(self, connect: Connect, path: str, size_bytes: int, pace: StorePace) -> None:
        self.size_bytes = size_bytes
        self.pace = pace
        self._connect = connect
        self._path = path
        self._pool = ThreadPoolExecutor(
            READ_BYTES // RANGE_BYTES[1], thread_name_prefix="drainfsm-range"
        )

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def read_into(self, offset: int, view: memoryview) -> None:
        end = offset + len(view)
        if len(view) <= RANGE_BYTES[0]:
            view[:] = memoryview(self._fetch(offset, end)) if view else b""
        else:
            _Ahead(self, [(offset, end)]).read_into(offset, view)

    def ahead(self, spans: Iterable[tuple[int, int]]) -> _Ahead:
        return _Ahead(self, spans)

    def fetch(self, start: int, end: int) -> Future[Bytes]:
        return self._pool.submit(self._fetch, start, end)

    def _fetch(self, start: int, end: int) -> Bytes:
        backend = self._connect(self.pace.flight().answer_s)
        for _ in range(SHORT_TRIES):
            data = obstore.get_range(backend, self._path, start=start, end=end)
            if len(data) == end - start:
                return data
        raise EOFError(f"the object ends at {start + len(data)}")


class _Fetched(NamedTuple):
    start: int
    end: int
    data: Future[Bytes]


class _Ahead:
    """See ``Ranges.ahead``: for one thread."""

    piece_bytes = RANGE_BYTES[1]

    def __init__(self, ranges: ObjectRanges, spans: Iterable[tuple[int, int]]) -> None:
        self.size_bytes = ranges.size_bytes
        self._ranges = ranges
        self._flight = ranges.pace.flight()
        self._planned = self._cut(spans)
        self._blocks: deque[_Fetched] = deque()
        self._began = time.monotonic()
        self._done_bytes = 0

    def ahead(self, spans: Iterable[tuple[int, int]]) -> _Ahead:
        return _Ahead(self._ranges, spans)

    def read_into(self, offset: int, view: memoryview) -> None:
        while view:
            block = self._block(offset)
            if block is None:  # not what was expected
                count = (
                    min(len(view), self._blocks[0].start - offset) if self._blocks else len(view)
                )
                count = count if count > 0 else len(view)
                self._ranges.read_into(offset, view[:count])
            else:
                data = memoryview(block.data.result())
                count = min(len(view), block.end - offset)
                at = offset - block.start
                view[:count] = data[at : at + count]
            offset, view = offset + count, view[count:]

    def _block(self, offset: int) -> _Fetched | None:
        """The one that has this byte; those before it are over."""
        self._fill_up()
        while self._blocks and self._blocks[0].end <= offset:
            over = self._blocks.popleft()
            self._done_bytes += over.end - over.start
            self._fill_up()
        if self._blocks and self._blocks[0].start <= offset:
            return self._blocks[0]
        return None

    def _fill_up(self) -> None:
        while len(self._blocks) < self._flight.at_once:
            span = next(self._planned, None)
            if span is None:
                if self._done_bytes and self._blocks:
                    self._ranges.pace.note(self._done_bytes, time.monotonic() - self._began)
                    self._done_bytes = 0
                return
            self._blocks.append(_Fetched(*span, self._ranges.fetch(*span)))

    def _cut(self, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for start, end in spans:
            for at in range(start, end, self._flight.part_bytes):
                yield at, min(end, at + self._flight.part_bytes)
