"""What the checksums of files are made of, so that anybody can make them again."""

from __future__ import annotations

import hashlib
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainfsm.errors import ConfigError
from drainfsm.store.checksums import LEAF_BYTES, checksum_of, new_hasher

WHOLE = bytes(range(256)) * (2 * LEAF_BYTES // 256) + b"the last piece is shorter"


def tree(data: bytes) -> str:
    leaves = [data[at : at + LEAF_BYTES] for at in range(0, len(data), LEAF_BYTES)]
    digests = b"".join(hashlib.sha256(leaf).digest() for leaf in leaves)
    return hashlib.sha256(digests).hexdigest()


@pytest.mark.parametrize(
    "size", [0, 1, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 2 * LEAF_BYTES, len(WHOLE)]
)
def test_a_tree_is_the_digest_of_the_digests_of_its_pieces(size: int) -> None:
    data = WHOLE[:size]
    assert checksum_of(io.BytesIO(data), algorithm="sha256_tree") == f"sha256_tree:{tree(data)}"


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=6))
def test_a_tree_does_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    hasher = new_hasher("sha256_tree")
    places = [0, *sorted(cuts), len(WHOLE)]
    for start, end in itertools.pairwise(places):
        hasher.update(memoryview(WHOLE)[start:end])
    assert hasher.hexdigest() == tree(WHOLE)


def test_what_was_handed_over_may_be_changed_at_once() -> None:
    """A writer uses its buffer again while threads still hash."""
    hasher = new_hasher("sha256_tree")
    buffer = bytearray(LEAF_BYTES)
    for number in range(8):
        buffer[:] = bytes([number]) * LEAF_BYTES
        hasher.update(memoryview(buffer))
    buffer[:] = bytes(LEAF_BYTES)
    assert hasher.hexdigest() == tree(b"".join(bytes([n]) * LEAF_BYTES for n in range(8)))


def test_the_tree_of_one_piece_is_not_its_digest() -> None:
    assert tree(b"x") != hashlib.sha256(b"x").hexdigest()
    assert checksum_of(io.BytesIO(b"x"), algorithm="sha256").endswith(
        hashlib.sha256(b"x").hexdigest()
    )


def test_an_unknown_algorithm_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match="choose xxh3_128, sha256 or sha256_tree"):
        new_hasher("crc32")
