"""What every checkpoint store promises. One line in ``STORES`` a store."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drainfsm.errors import SlotTakenError, StoreError
from drainfsm.store import PosixStore, open_store
from drainfsm.store.base import ObjectStore
from drainfsm.testing.stores import MemoryStore
from drainfsm_kit.s3 import BUCKET

WRITERS = 8


def no_links(source: Path, target: Path) -> None:
    raise OSError(errno.EPERM, "Operation not permitted", str(target))


STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "posix": lambda path: PosixStore(path / "store"),
    "posix_without_links": lambda path: PosixStore(path / "store", link=no_links),
    "memory": lambda path: MemoryStore(),
    "s3": lambda path: open_store(f"s3://{BUCKET}/{path.name}"),
    "s3_files": lambda path: open_store(f"s3://{BUCKET}/{path.name}"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param.startswith("s3"):
        request.getfixturevalue(request.param)
    store = STORES[request.param](tmp_path)
    store.create()
    return store


def test_an_object_is_read_back_as_it_was_put(store: ObjectStore) -> None:
    store.put_if_absent("commits/00000001.json", b"one")
    store.put("empty", b"")
    assert store.get("commits/00000001.json") == b"one"
    assert store.get("empty") == b""
    assert store.get("commits/00000002.json") is None
    assert store.get("nowhere/at/all") is None


def test_put_if_absent_never_replaces(store: ObjectStore) -> None:
    store.put_if_absent("slot", b"first")
    for data in (b"second", b"first"):
        with pytest.raises(SlotTakenError, match="there already"):
            store.put_if_absent("slot", data)
    assert store.get("slot") == b"first"


def test_one_of_many_writers_gets_the_name(store: ObjectStore) -> None:
    def put(number: int) -> int | None:
        try:
            store.put_if_absent("commits/00000001.json", b"%d" % number * 1000)
        except SlotTakenError:
            return None
        return number

    with ThreadPoolExecutor(WRITERS) as pool:
        won = [number for number in pool.map(put, range(WRITERS)) if number is not None]
    assert len(won) == 1
    assert store.get("commits/00000001.json") == b"%d" % won[0] * 1000
    assert store.list("") == {"commits/00000001.json": 1000}


def test_put_replaces(store: ObjectStore) -> None:
    store.put("a/b", b"old and long")
    store.put("a/b", b"new")
    assert store.get("a/b") == b"new"
    assert store.list("a/") == {"b": 3}


def test_a_listing_is_relative_and_deep(store: ObjectStore) -> None:
    for name in ("generations/g1/.metadata", "generations/g1/sub/x", "generations/g10/y", "top"):
        store.put(name, name.encode())
    assert store.list("generations/g1/") == {".metadata": 24, "sub/x": 20}
    assert set(store.list("")) == {
        "generations/g1/.metadata",
        "generations/g1/sub/x",
        "generations/g10/y",
        "top",
    }
    assert store.list("nothing/") == {}


def test_names_are_sorted_and_begin_after(store: ObjectStore) -> None:
    for number in (3, 1, 2):
        store.put(f"commits/{number:08d}.json", b"x")
    names = [f"{number:08d}.json" for number in (1, 2, 3)]
    assert list(store.names("commits/")) == names
    assert list(store.names("commits/", after=names[0])) == names[1:]
    assert list(store.names("commits/", after=names[2])) == []
    assert list(store.names("nothing/")) == []


def test_delete_is_final_and_may_be_repeated(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    for _ in range(2):
        store.delete("a/b")
    assert store.get("a/b") is None
    store.put_if_absent("a/b", b"y")
    assert store.get("a/b") == b"y"


def test_a_tree_is_deleted_with_everything_in_it_and_nothing_beside(store: ObjectStore) -> None:
    for name in ("generations/g1/x", "generations/g1/sub/y", "generations/g10/z"):
        store.put(name, b"x")
    for _ in range(2):
        store.delete_tree("generations/g1/")
    assert set(store.list("")) == {"generations/g10/z"}
    store.put("generations/g1/x", b"again")
    assert store.get("generations/g1/x") == b"again"
    with pytest.raises(StoreError, match="whole store"):
        store.delete_tree("")


def test_a_tree_is_begun_once(store: ObjectStore) -> None:
    store.create_tree("generations/g1/")
    with store.writer("generations/g1/x") as stream:
        stream.write(b"x")
    with pytest.raises(SlotTakenError, match="used once"):
        store.create_tree("generations/g1/")
    store.put("generations/g2/x", b"x")
    with pytest.raises(SlotTakenError, match="used once"):
        store.create_tree("generations/g2/")


def test_a_stream_becomes_an_object_when_it_ends(store: ObjectStore) -> None:
    store.create_tree("generations/g1/")
    with store.writer("generations/g1/x") as stream:
        for _ in range(3):
            stream.write(b"0123456789" * 100_000)
        assert stream.tell() == 3_000_000
    assert store.list("generations/g1/") == {"x": 3_000_000}
    with store.reader("generations/g1/x") as stream:
        stream.seek(2_999_995)
        assert stream.read() == b"56789"
        stream.seek(10)
        assert stream.read(3) == b"012"


def test_ranges_are_read_into_memory_that_is_there(store: ObjectStore) -> None:
    """By several threads, and across the parts that an object store is asked for."""
    data = bytes(range(256)) * (80_000) + b"end"
    store.create_tree("generations/g1/")
    with store.writer("generations/g1/x") as stream:
        stream.write(data)
    with store.ranges("generations/g1/x") as ranges, ThreadPoolExecutor(4) as pool:
        assert ranges.size_bytes == len(data)
        places = [bytearray(length) for length in (0, 1, 10_000_000, 20_000_000)]
        reads = [
            pool.submit(ranges.read_into, 7 * at, memoryview(place))
            for at, place in enumerate(places)
        ]
        for read in reads:
            read.result()
        for at, place in enumerate(places):
            assert place == data[7 * at : 7 * at + len(place)]
        with pytest.raises(EOFError):
            ranges.read_into(len(data) - 1, memoryview(bytearray(2)))


def test_ranges_of_nothing_say_so(store: ObjectStore) -> None:
    with pytest.raises(FileNotFoundError), store.ranges("generations/g1/x"):
        pass


def test_a_stream_that_fails_leaves_no_object(store: ObjectStore) -> None:
    store.create_tree("generations/g1/")

    def fail() -> None:
        with store.writer("generations/g1/x") as stream:
            stream.write(b"half")
            raise ValueError("the writer died")

    with pytest.raises(ValueError, match="the writer died"):
        fail()
    assert store.list("") == {}
    assert store.get("generations/g1/x") is None


def test_reading_what_is_not_there_says_so(store: ObjectStore) -> None:
    def read() -> None:
        with store.reader("generations/g1/x") as stream:
            stream.read()

    with pytest.raises(FileNotFoundError):
        read()


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", "a\\b"]
)
def test_a_name_that_leaves_the_root_or_is_spelled_oddly_is_refused(
    store: ObjectStore, name: str
) -> None:
    for call in (store.get, store.delete):
        with pytest.raises(StoreError, match="not a relative path"):
            call(name)
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreError, match="not a relative path"):
            write(name, b"x")
    with pytest.raises(StoreError):
        store.list(f"{name}x")
    with pytest.raises(StoreError, match="temporary"):
        store.get("a/.tmp-drainfsm-1")
