"""Reading in place: every tensor comes back, by whichever way, and every byte is hashed once."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from drainfsm.checkpoint.filling import Hashed, Plain, Wanted, by_position, fill, split
from drainfsm.checkpoint.stored import HEAD_BYTES, payload_of
from drainfsm.testing.stores import MemoryStore

PIECE = 4096
TENSORS = {
    "row": torch.arange(5.0),
    "table": torch.randn(64, 65),
    "large": torch.randn(600, 700),
    "number": torch.tensor(3),
    "nothing": torch.empty(0, 4),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": torch.randn(4, 4, dtype=torch.bfloat16),
    "float8": torch.ones(2, 2).to(torch.float8_e4m3fn),
    "uint16": torch.arange(3).to(torch.uint16),
    "complex": torch.randn(2, 3, dtype=torch.complex64),
    "many dimensions": torch.randn(1, 2, 1, 2, 1, 3, 2, 2),
}


def stored(tensors: dict[str, Tensor], *, gap: int = 3) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A file as the writer makes it, with odd bytes in between."""
    file = io.BytesIO()
    places = {}
    for name, tensor in tensors.items():
        file.write(b"x" * gap)
        at = file.tell()
        torch.save(tensor, file)
        places[name] = (at, file.tell() - at)
    file.write(b"end")
    return file.getvalue(), places


def whole(name: str, tensor: Tensor) -> ReadItem:
    return rows(name, [0] * tensor.dim(), list(tensor.size()))


def rows(name: str, offsets: list[int], lengths: list[int]) -> ReadItem:
    return ReadItem(
        type=LoadItemType.TENSOR,
        dest_index=MetadataIndex(name),
        dest_offsets=torch.Size([0] * len(lengths)),
        storage_index=MetadataIndex(name),
        storage_offsets=torch.Size(offsets),
        lengths=torch.Size(lengths),
    )


def source(data: bytes, hasher: Any = None) -> Plain:
    store = MemoryStore()
    store.put("file", data)
    with store.ranges("file") as ranges:
        ranges.piece_bytes = PIECE
        return Plain(ranges) if hasher is None else Hashed(ranges, hasher)


def filled(data: bytes, wanted: Sequence[Wanted], places: dict[str, Tensor]) -> dict[str, bytes]:
    return fill(source(data), by_position(wanted), lambda item: places[item.dest_index.fqn])


@pytest.mark.parametrize("name", TENSORS)
def test_the_bytes_of_a_tensor_are_where_its_head_says(name: str) -> None:
    tensor = TENSORS[name]
    data, places = stored({name: tensor})
    at, length = places[name]
    payload = payload_of(data[at : at + min(length, HEAD_BYTES)])
    assert payload is not None
    assert (payload.sizes, payload.dtype) == (tuple(tensor.size()), tensor.dtype)
    start = at + payload.at
    found = data[start : start + payload.size_bytes]
    assert found == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).t(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_what_is_not_row_by_row_is_left_to_torch(tensor: Tensor) -> None:
    data, places = stored({"odd": tensor})
    at, length = places["odd"]
    assert payload_of(data[at : at + HEAD_BYTES]) is None
    place = torch.zeros(tensor.size(), dtype=tensor.dtype)
    filled(data, [Wanted(at, length, whole("odd", tensor))], {"odd": place})
    assert torch.equal(place, tensor)


@pytest.mark.parametrize("head", [b"", b"\0" * HEAD_BYTES, b"archive/data.pkl" * 64])
def test_a_head_that_says_nothing_is_nothing(head: bytes) -> None:
    assert payload_of(head) is None


def test_damaged_heads_never_raise() -> None:
    data, _ = stored({"row": TENSORS["row"]}, gap=0)
    head = data[:HEAD_BYTES]
    for at in range(320):
        changed = bytearray(head)
        changed[at] ^= 0xFF
        payload_of(bytes(changed))


def test_everything_is_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", None)  # no tensor in between
    data, at = stored(TENSORS)
    places = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    filled(data, [Wanted(*at[n], whole(n, t)) for n, t in TENSORS.items()], places)
    for name, tensor in TENSORS.items():
        assert torch.equal(places[name].view(tensor.dtype), tensor), name


@pytest.mark.parametrize(
    ("offsets", "lengths"), [([100, 0], [50, 700]), ([0, 650], [600, 50]), ([7, 9], [501, 311])]
)
def test_rows_and_columns_of_a_large_tensor(offsets: list[int], lengths: list[int]) -> None:
    large = TENSORS["large"]
    data, at = stored({"large": large})
    place = torch.zeros(lengths)
    filled(data, [Wanted(*at["large"], rows("large", offsets, lengths))], {"large": place})
    (row, column), (height, width) = offsets, lengths
    assert torch.equal(place, large[row : row + height, column : column + width])


def test_a_place_with_gaps_is_filled() -> None:
    """Columns of something larger."""
    large = TENSORS["large"]
    data, at = stored({"large": large})
    around = torch.zeros(600, 1000)
    filled(data, [Wanted(*at["large"], whole("large", large))], {"large": around[:, 100:800]})
    assert torch.equal(around[:, 100:800], large)
    assert around.count_nonzero() == large.count_nonzero()


@pytest.mark.parametrize("count", [0, 1, 3, 7, 10_000])
def test_an_item_in_parts_is_the_whole(count: int) -> None:
    large = TENSORS["large"]
    data, at = stored({"large": large})
    parts = list(split(Wanted(*at["large"], whole("large", large)), count))
    assert len(parts) == min(max(count, 1), 600)
    place = torch.zeros_like(large)
    for part in parts:
        start, length = part.item.dest_offsets[0], part.item.lengths[0]
        filled(data, [part], {"large": place.narrow(0, start, length)})
    assert torch.equal(place, large)


@pytest.mark.parametrize("names", [[], ["large"], ["row", "bfloat16"], list(TENSORS)])
def test_the_hash_is_that_of_the_whole_file(names: list[str]) -> None:
    """Whatever is wanted of it, and whoever wants the same twice."""
    data, at = stored(TENSORS)
    wanted = [Wanted(*at[name], whole(name, TENSORS[name])) for name in (*names, *names)]
    places = {name: torch.zeros_like(TENSORS[name]) for name in names}
    hashed = source(data, hashlib.sha256())
    assert isinstance(hashed, Hashed)
    fill(hashed, by_position(wanted), lambda item: places[item.dest_index.fqn])
    assert hashed.hexdigest() == hashlib.sha256(data).hexdigest()
    assert all(torch.equal(places[name], TENSORS[name]) for name in names)


def test_neighbours_are_read_at_once_and_large_items_alone() -> None:
    small = {f"small{n}": torch.full((10,), float(n)) for n in range(5)}
    data, at = stored({**small, "large": TENSORS["large"]})
    reads = []
    plain = source(data)
    inner = plain.read_into

    def noted(offset: int, view: memoryview) -> None:
        reads.append(len(view))
        inner(offset, view)

    plain.piece_bytes = 1 << 20
    plain.read_into = noted  # type: ignore[method-assign]
    places = {name: torch.zeros_like(tensor) for name, tensor in small.items()}
    places["large"] = torch.zeros_like(TENSORS["large"])
    wanted = [Wanted(*at[name], whole(name, place)) for name, place in places.items()]
    fill(plain, wanted, lambda item: places[item.dest_index.fqn])
    assert all(torch.equal(places[name], tensor) for name, tensor in small.items())
    together = at["small4"][0] + at["small4"][1] - at["small0"][0]
    assert reads == [together, 1 << 20, TENSORS["large"].nbytes - (1 << 20)]
