"""Checkpoint stores for tests: one in memory, and one that answers badly."""

from __future__ import annotations

import enum
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from drainfsm.errors import SlotTakenError, StoreError, StoreUnreachableError
from drainfsm.store import ObjectStore, open_store
from drainfsm.store.base import Ranges, check_name, check_prefix


def new_store(where: Path | str) -> ObjectStore:
    """The store at a path or URL, with its root made, as ``drainfsm run`` does at a first start."""
    store = open_store(str(where))
    store.create()
    return store


class MemoryStore:
    """Keeps everything the interface promises except durability."""

    def __init__(self, url: str = "memory://test") -> None:
        self.url = url
        self.objects: dict[str, bytes] = {}
        self._trees: set[str] = set()

    def create(self, *, parents: bool = False) -> None:
        """It is there."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        if check_name(name) in self.objects:
            raise SlotTakenError(f"{name} is there already")
        self.objects[name] = bytes(data)

    def put(self, name: str, data: bytes) -> None:
        self.objects[check_name(name)] = bytes(data)

    def get(self, name: str) -> bytes | None:
        return self.objects.get(check_name(name))

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.get(name) for name in names]

    def list(self, prefix: str) -> dict[str, int]:
        check_prefix(prefix)
        return {
            name.removeprefix(prefix): len(data)
            for name, data in sorted(self.objects.items())
            if name.startswith(prefix)
        }

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        return [name for name in self.list(prefix) if "/" not in name and name > after]

    def delete(self, name: str) -> None:
        self.objects.pop(check_name(name), None)

    def delete_tree(self, prefix: str) -> None:
        if not check_prefix(prefix):
            raise StoreError("refusing to delete the whole store: give a prefix")
        self._trees.discard(prefix)
        for name in [name for name in self.objects if name.startswith(prefix)]:
            del self.objects[name]

    def create_tree(self, prefix: str) -> None:
        if prefix in self._trees or self.list(prefix):
            raise SlotTakenError(f"{prefix} is there already; a tree is used once")
        self._trees.add(prefix)

    @contextmanager
    def writer(self, name: str, *, size_bytes: int = 0) -> Iterator[BinaryIO]:
        stream = io.BytesIO()
        yield stream
        self.put_if_absent(name, stream.getvalue())

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        data = self.get(name)
        if data is None:
            raise FileNotFoundError(name)
        yield io.BytesIO(data)

    @contextmanager
    def ranges(self, name: str, *, size_bytes: int = 0) -> Iterator[Ranges]:
        data = self.get(name)
        if data is None:
            raise FileNotFoundError(name)
        yield _BytesRanges(data)


class _BytesRanges:
    """See ``Ranges``."""

    piece_bytes = 1 << 20

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    def read_into(self, offset: int, view: memoryview) -> None:
        found = self._data[offset : offset + len(view)]
        if len(found) < len(view):
            raise EOFError("the object ends before the view is full")
        view[:] = found

    def ahead(self, spans: Iterable[tuple[int, int]]) -> _BytesRanges:
        return self


class PutAnswer(enum.Enum):
    """What happens to a ``put_if_absent``, and to its answer."""

    TRUE = "done, and said so"
    LOST = "done, but the answer is lost"
    REFUSED = "not done, and no answer"
    LATE = "no answer; done at some later time, if the name is still free then"


class AmbiguousStore:
    """Asks ``answer`` what happens to every ``put_if_absent``. Reads are true.

    ``before`` is called first by every method that touches the inner store: a test that
    interleaves several users of one store blocks there.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        answer: Callable[[str], PutAnswer],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.url = inner.url
        self.late: list[tuple[str, bytes]] = []
        """Puts on their way. ``land`` lets one arrive."""

        self._inner = inner
        self._answer = answer
        self._before = before

    def land(self, index: int) -> bool:
        """One of the late puts arrives; False if the name was taken meanwhile."""
        name, data = self.late.pop(index)
        try:
            self._inner.put_if_absent(name, data)
        except SlotTakenError:
            return False
        return True

    def create(self, *, parents: bool = False) -> None:
        self._inner.create(parents=parents)

    def put_if_absent(self, name: str, data: bytes) -> None:
        self._before()
        answer = self._answer(name)
        if answer is PutAnswer.REFUSED:
            raise StoreUnreachableError("no answer, and nothing done")
        if answer is PutAnswer.LATE:
            self.late.append((name, data))
            raise StoreUnreachableError("no answer yet")
        try:
            self._inner.put_if_absent(name, data)
        except SlotTakenError:
            if answer is PutAnswer.TRUE:
                raise
        if answer is PutAnswer.LOST:
            raise StoreUnreachableError("done, but the answer is lost")

    def put(self, name: str, data: bytes) -> None:
        self._before()
        self._inner.put(name, data)

    def get(self, name: str) -> bytes | None:
        self._before()
        return self._inner.get(name)

    def get_each(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return [self.get(name) for name in names]

    def list(self, prefix: str) -> dict[str, int]:
        self._before()
        return self._inner.list(prefix)

    def names(self, prefix: str, *, after: str = "") -> Sequence[str]:
        self._before()
        return self._inner.names(prefix, after=after)

    def delete(self, name: str) -> None:
        self._before()
        self._inner.delete(name)

    def delete_tree(self, prefix: str) -> None:
        self._before()
        self._inner.delete_tree(prefix)

    def create_tree(self, prefix: str) -> None:
        self._before()
        self._inner.create_tree(prefix)

    @contextmanager
    def writer(self, name: str, *, size_bytes: int = 0) -> Iterator[BinaryIO]:
        self._before()
        with self._inner.writer(name, size_bytes=size_bytes) as stream:
            yield stream

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        self._before()
        with self._inner.reader(name) as stream:
            yield stream

    @contextmanager
    def ranges(self, name: str, *, size_bytes: int = 0) -> Iterator[Ranges]:
        self._before()
        with self._inner.ranges(name, size_bytes=size_bytes) as ranges:
            yield ranges
