"""The POSIX store where the file system is full, far away or odd."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drainfsm.durable import begin_writeback
from drainfsm.errors import ConfigError, SlotTakenError, StoreUnreachableError
from drainfsm.store import PosixStore, open_store, posix
from drainfsm.store.base import TEMPORARY_PREFIX


def all_files(root: Path) -> list[str]:
    return sorted(p.name for p in root.rglob("*") if p.is_file())


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Writes beyond the limit fail with EFBIG (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "store")
    store.create()
    store.put("kept", b"old")
    with file_size_limit(100_000):
        for write in (store.put_if_absent, store.put):
            with pytest.raises(StoreUnreachableError, match=r"File too large.*not full"):
                write("kept" if write == store.put else "new", b"x" * 200_000)
        store.create_tree("generations/g1/")
        with (
            pytest.raises(StoreUnreachableError, match="File too large"),
            store.writer("generations/g1/x") as stream,
        ):
            stream.write(b"x" * 2_000_000)
    assert all_files(tmp_path) == ["kept"]
    assert store.get("kept") == b"old"


@pytest.mark.parametrize("name", [b"\xff", "é".encode(), b"a b%20?#\n"])
def test_ranks_find_a_store_of_any_name_by_its_url(tmp_path: Path, name: bytes) -> None:
    store = open_store(str(tmp_path / os.fsdecode(name)))
    again = open_store(store.url)
    assert isinstance(again, PosixStore)
    assert os.fsencode(again.root) == os.fsencode(tmp_path) + b"/" + name


def test_a_file_system_without_space_is_reported(tmp_path: Path) -> None:
    """A full disk, where we may mount one; elsewhere the limit above stands for it."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        return
    try:
        store = PosixStore(tmp_path)
        with pytest.raises(StoreUnreachableError, match="No space left on device"):
            store.put_if_absent("slot", b"x" * 1_000_000)
        assert all_files(tmp_path) == []
        store.put_if_absent("slot", b"small")
        assert store.get("slot") == b"small"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_is_too_full_says_so_before_anything_is_written(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system")
    try:
        store = PosixStore(tmp_path)
        store.create_tree("generations/g1/")
        began = False
        with (
            pytest.raises(StoreUnreachableError, match="No space left on device"),
            store.writer("generations/g1/x", size_bytes=8 << 20),
        ):
            began = True
        assert not began
        assert all_files(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_room_that_was_taken_and_not_needed_is_given_back(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.create_tree("generations/g1/")
    path = tmp_path / "generations/g1/x"
    with store.writer("generations/g1/x", size_bytes=16 << 20) as stream:
        stream.write(b"x" * 100_000)
        assert path.stat().st_size in (0, 100_000), "its length is what was written"
    assert path.stat().st_size == 100_000
    assert path.stat().st_blocks * 512 < 1 << 20


def test_a_link_that_was_made_although_the_answer_says_exists_counts(tmp_path: Path) -> None:
    """NFS: the request was sent twice, and the second one found the link of the first."""

    def link_twice(source: Path, target: Path) -> None:
        os.link(source, target)
        os.link(source, target)

    store = PosixStore(tmp_path, link=link_twice)
    store.put_if_absent("slot", b"ours")
    assert store.get("slot") == b"ours"
    with pytest.raises(SlotTakenError):
        store.put_if_absent("slot", b"theirs")


def test_a_link_that_was_made_although_the_answer_says_error_counts(tmp_path: Path) -> None:
    def link_then_fail(source: Path, target: Path) -> None:
        os.link(source, target)
        raise TimeoutError(110, "Connection timed out", str(target))

    store = PosixStore(tmp_path, link=link_then_fail)
    store.put_if_absent("slot", b"ours")
    assert store.get("slot") == b"ours"
    assert all_files(tmp_path) == ["slot"]


def test_a_link_that_fails_for_good_is_reported(tmp_path: Path) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(5, "Input/output error", str(target))

    store = PosixStore(tmp_path, link=fail)
    with pytest.raises(StoreUnreachableError, match="Input/output error"):
        store.put_if_absent("slot", b"ours")
    assert all_files(tmp_path) == []


def test_file_directory_and_every_new_parent_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No power failure can be made here; what can be seen is that every name was synced after
    it was given, and every byte before."""
    order: list[str] = []
    real_fsync = os.fsync

    def fsync(fd: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{fd}"))
        real_fsync(fd)

    def link(source: Path, target: Path) -> None:
        order.append("link")
        os.link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    store = PosixStore(tmp_path / "new" / "root", link=link)
    store.create(parents=True)
    store.put_if_absent("commits/deep/00000001.json", b"x")
    root = str(tmp_path / "new" / "root")
    assert order[:4] == [str(tmp_path), str(tmp_path / "new"), root, f"{root}/commits"]
    assert order[4].startswith(f"{root}/commits/deep/.tmp-drainfsm-")
    assert order[5:] == ["link", f"{root}/commits/deep"]
    order.clear()
    store.create_tree("generations/g1/")
    with store.writer("generations/g1/x") as stream:
        stream.write(b"x")
    generations = f"{root}/generations"
    assert order == [root, generations, f"{generations}/g1/x", f"{generations}/g1"]


def test_unfinished_objects_are_not_listed(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.put("commits/00000001.json", b"x")
    (tmp_path / "commits" / f"{TEMPORARY_PREFIX}abc").write_bytes(b"half")
    assert store.list("") == {"commits/00000001.json": 1}
    assert store.names("commits/") == ["00000001.json"]


def test_directories_that_were_removed_meanwhile_are_made_again(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "store")
    store.create()
    store.put("a/b/c", b"x")
    other = PosixStore(tmp_path / "store")
    other.delete_tree("a/")
    store.put("a/b/c", b"y")
    store.put("a/b/d", b"z")
    assert store.list("a/") == {"b/c": 1, "b/d": 1}


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        store = PosixStore(path)
        with pytest.raises(ConfigError, match="file"):
            store.create(parents=True)
        with pytest.raises(StoreUnreachableError, match="cannot create"):
            store.put_if_absent("slot", b"x")
        assert store.get("slot") is None


def test_a_store_is_made_where_it_was_meant_to_be_and_nowhere_else(tmp_path: Path) -> None:
    lost = PosixStore(tmp_path / "mnt" / "store")
    with pytest.raises(ConfigError, match=r"mnt does not exist.*mounted.*--create-store"):
        lost.create()
    assert not (tmp_path / "mnt").exists()
    lost.create(parents=True)
    lost.create()
    lost.put("slot", b"x")
    assert lost.get("slot") == b"x"


def test_a_store_that_vanished_is_not_made_anew(tmp_path: Path) -> None:
    store = PosixStore(tmp_path / "mnt" / "store")
    store.create(parents=True)
    store.put("commits/1", b"x")
    (tmp_path / "mnt").rename(tmp_path / "elsewhere")
    for use in (
        lambda: store.put_if_absent("commits/2", b"x"),
        lambda: store.put("commits/2", b"x"),
        lambda: store.create_tree("generations/g1/"),
        lambda: store.directory("generations/g1/"),
    ):
        with pytest.raises(StoreUnreachableError, match="mounted"):
            use()
    assert not (tmp_path / "mnt").exists()


def test_urls_and_paths_open_the_same_store(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    by_path = open_store(str(root))
    by_path.create()
    assert by_path.url == root.as_uri()
    by_url = open_store(by_path.url)
    by_path.put("x", b"1")
    assert by_url.get("x") == b"1"
    assert by_url.url == by_path.url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "empty"),
        ("ftp://host/x", "ftp:// is not supported"),
        ("file://host/x", "three slashes"),
    ],
)
def test_a_url_of_no_known_kind_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(url)


def test_opening_a_store_imports_neither_torch_nor_object_store_clients() -> None:
    code = (
        "import sys; from drainfsm.store import open_store; open_store('/tmp/x');"
        "print([m for m in ('torch', 'obstore', 'nats', 'xxhash') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_file_that_vanishes_while_its_tree_is_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PosixStore(tmp_path)
    for name in ("a", "b", "c"):
        store.put(f"tree/{name}", b"1")
    opens = os.open

    def removes(path: str, *given: int) -> int:
        if path.endswith("/b"):
            os.unlink(path)
        return opens(path, *given)

    monkeypatch.setattr(os, "open", removes)
    assert store.list("tree/") == {"a": 1, "c": 1}


def test_a_put_that_fails_at_its_end_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    store.put("taken/by", b"a directory")
    with pytest.raises(StoreUnreachableError, match="cannot write"):
        store.put("taken", b"x")
    assert all_files(tmp_path) == ["by"]


def test_the_disk_begins_with_a_large_file_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every byte once, in order; what is left at the end is the sync's."""
    begun: list[tuple[int, int]] = []

    def begin(fd: int, offset: int, size_bytes: int) -> None:
        begun.append((offset, size_bytes))
        begin_writeback(fd, offset, size_bytes)

    monkeypatch.setattr(posix, "begin_writeback", begin)
    store = PosixStore(tmp_path / "store")
    store.create()
    store.create_tree("generations/g1/")
    data = os.urandom(3 * posix.WRITEBACK_BYTES + 5)
    with store.writer("generations/g1/x", size_bytes=len(data)) as stream:
        for at in range(0, len(data), 3 << 20):
            stream.write(data[at : at + (3 << 20)])
    assert store.get("generations/g1/x") == data
    ends = [offset + size for offset, size in begun]
    assert [offset for offset, _ in begun] == [0, *ends[:-1]]
    assert len(data) - ends[-1] < posix.WRITEBACK_BYTES
    assert len(begun) >= 2
