"""The job token in the store: for its owner alone, or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm.errors import ConfigError, StoreUnreachableError
from drainfsm.runtime.agent.stored_token import NAME, stored_token
from drainfsm.store import PosixStore
from drainfsm.testing.stores import MemoryStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    before = os.umask(0o022)
    store = PosixStore(tmp_path / "store")
    store.create()
    yield store
    os.umask(before)


def mode_of(store: PosixStore) -> int:
    return stat.S_IMODE((store.root / NAME).stat().st_mode)


def nobody_waits(_: float) -> None:
    raise AssertionError("waited")


@pytest.mark.parametrize("first", [0, 1])
def test_all_nodes_get_the_same_whoever_comes_first(store: PosixStore, first: int) -> None:
    token = stored_token(store, node_rank=first, pause=nobody_waits)
    assert len(token) == 64
    assert mode_of(store) == 0o600
    assert stored_token(store, node_rank=1 - first, pause=nobody_waits) == token


def test_one_that_others_could_read_is_replaced_by_node_0(store: PosixStore) -> None:
    store.put(NAME, b"known to others")
    assert mode_of(store) == 0o644
    told: list[str] = []

    def pause(_: float) -> None:
        told.append(stored_token(store, node_rank=0))

    token = stored_token(store, node_rank=1, pause=pause)
    assert told == [token]
    assert token != "known to others"
    assert mode_of(store) == 0o600


def test_nobody_joins_with_one_that_others_can_read(store: PosixStore) -> None:
    store.put(NAME, b"known to others")
    with pytest.raises(ConfigError, match=r"others can read .*token.*DRAINFSM_TOKEN"):
        stored_token(store, node_rank=1, pause=lambda _: None)


def test_where_files_cannot_be_kept_from_others_none_is_written(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CIFS or vfat, where every file has the mode of the mount."""
    opened = os.open

    def as_mounted(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        fd = opened(path, flags, mode, **more)
        os.fchmod(fd, 0o755) if flags & os.O_CREAT else None
        return fd

    monkeypatch.setattr(os, "open", as_mounted)
    with pytest.raises(ConfigError, match=r"cannot keep others from reading.*DRAINFSM_TOKEN"):
        stored_token(store, node_rank=0)
    assert list(store.root.iterdir()) == []


def test_one_of_another_user_is_no_store_that_is_away(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_token(store, node_rank=0)

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(ConfigError, match=r"of another user.*DRAINFSM_TOKEN"):
        stored_token(store, node_rank=1)


def test_a_store_that_is_not_there_is_away(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError):
        stored_token(PosixStore(tmp_path / "gone"), node_rank=0)


def test_in_a_bucket_who_may_read_it_is_up_to_the_bucket() -> None:
    store = MemoryStore()
    assert stored_token(store, node_rank=1) == stored_token(store, node_rank=0)
