"""Fills tensors with what is stored: from the file to where it belongs, in several threads.

No second copy of the state is made. What cannot be read in place (another device, columns of a
tensor, an archive that is laid out otherwise) takes a piece at a time. A file that this rank checks
is hashed while it is read, in its order, and read to its end.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from drainfsm.checkpoint.stored import HEAD_BYTES, Payload, payload_of
from drainfsm.store.base import Ranges
from drainfsm.store.checksums import Hasher

SMALL_BYTES = 1 << 20
"""Items up to this size are read together with their neighbours, and then copied."""

GAP_BYTES = 64 << 10
"""Neighbours may be this far apart: what nobody wants is read along."""


class Wanted(NamedTuple):
    """One item of a file, or rows of it."""

    at: int
    length: int
    """Of the item in the file, with all that ``torch.save`` wrote around it."""

    item: ReadItem
    whole: bool = True
    """All of its bytes are wanted."""

    @property
    def end(self) -> int:
        return self.at + self.length


Resolve = Callable[[ReadItem], Tensor]
"""The place that an item fills."""


class Source(Protocol):
    def read_into(self, offset: int, view: memoryview) -> None: ...

    def peek(self, offset: int, length: int) -> bytes:
        """Read, but not hashed: the same bytes are read again."""


class Plain:
    """An object of the store."""

    def __init__(self, ranges: Ranges) -> None:
        self.piece_bytes = ranges.piece_bytes
        self._ranges = ranges

    def read_into(self, offset: int, view: memoryview) -> None:
        self._ranges.read_into(offset, view)

    def peek(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self._ranges.read_into(offset, memoryview(data))
        return bytes(data)


class Hashed(Plain):
    """The same, hashed in the order of the file, with everything that lies between what is read."""

    def __init__(self, ranges: Ranges, hasher: Hasher) -> None:
        super().__init__(ranges)
        self._hasher = hasher
        self._hashed = 0
        self._scratch = memoryview(bytearray(0))

    def read_into(self, offset: int, view: memoryview) -> None:
        self._skim(offset)
        self._ranges.read_into(offset, view)
        self._hash(view[max(0, self._hashed - offset) :])

    def hexdigest(self) -> str:
        """Of the whole file."""
        self._skim(self._ranges.size_bytes)
        return self._hasher.hexdigest()

    def _skim(self, until: int) -> None:
        while self._hashed < until:
            if not self._scratch:
                self._scratch = memoryview(bytearray(self.piece_bytes))
            piece = self._scratch[: until - self._hashed]
            self._ranges.read_into(self._hashed, piece)
            self._hash(piece)

    def _hash(self, view: memoryview) -> None:
        if view:
            self._hasher.update(view)
            self._hashed += len(view)


class _Block:
    """A stretch of a file that is in memory."""

    def __init__(self, at: int, data: memoryview) -> None:
        self._at = at
        self._data = data

    def read_into(self, offset: int, view: memoryview) -> None:
        start = offset - self._at
        view[:] = self._data[start : start + len(view)]

    def peek(self, offset: int, length: int) -> bytes:
        start = offset - self._at
        return bytes(self._data[start : start + length])


def fill(source: Plain, wanted: Sequence[Wanted], resolve: Resolve) -> dict[str, bytes]:
    """Fill the places of these items of one file, which are sorted. Returns the objects among
    them, by name, as they were written."""
    objects: dict[str, bytes] = {}
    for group in _neighbours(wanted, limit_bytes=source.piece_bytes):
        first, end = group[0], max(one.end for one in group)
        from_: Source = source
        if first.length <= SMALL_BYTES:
            data = memoryview(bytearray(end - first.at))
            source.read_into(first.at, data)
            from_ = _Block(first.at, data)
        for one in group:
            if one.item.type is LoadItemType.BYTE_IO:
                objects[one.item.dest_index.fqn] = _whole(from_, one)
            else:
                _fill_tensor(from_, one, resolve(one.item).detach(), source.piece_bytes)
    return objects


def split(one: Wanted, count: int) -> Iterator[Wanted]:
    """The item's rows in up to ``count`` parts, which may be read by several threads."""
    item = one.item
    rows = item.lengths[0] if len(item.lengths) else 1
    if item.type is LoadItemType.BYTE_IO or min(count, rows) < 2:
        yield one
        return
    step = math.ceil(rows / count)
    for start in range(0, rows, step):
        lengths = torch.Size([min(step, rows - start), *item.lengths[1:]])
        yield one._replace(
            whole=False,
            item=ReadItem(
                type=item.type,
                dest_index=item.dest_index,
                dest_offsets=_shifted(item.dest_offsets, start),
                storage_index=item.storage_index,
                storage_offsets=_shifted(item.storage_offsets, start),
                lengths=lengths,
            ),
        )


def _shifted(offsets: torch.Size, rows: int) -> torch.Size:
    return torch.Size([offsets[0] + rows, *offsets[1:]])


def _neighbours(wanted: Sequence[Wanted], *, limit_bytes: int) -> Iterator[list[Wanted]]:
    """Large items alone, small ones together."""
    group: list[Wanted] = []
    for one in wanted:
        joins = (
            group
            and max(one.length, group[0].length) <= SMALL_BYTES
            and one.at - group[-1].end <= GAP_BYTES
            and one.end - group[0].at <= limit_bytes
        )
        if group and not joins:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _whole(source: Source, one: Wanted) -> bytes:
    data = bytearray(one.length)
    source.read_into(one.at, memoryview(data))
    return bytes(data)


def _fill_tensor(source: Source, one: Wanted, place: Tensor, piece_bytes: int) -> None:
    payload = payload_of(source.peek(one.at, min(one.length, HEAD_BYTES)))
    if payload is None or payload.at + payload.size_bytes > one.length:
        tensor = torch.load(io.BytesIO(_whole(source, one)), map_location="cpu", weights_only=True)
        _copy(_narrowed(tensor, one.item, first_dimension=0), place)
    elif _in_place(payload, one.item, place):
        start = one.at + payload.at + _first_byte(payload, one.item)
        _read_pieces(source, start, memory_of(place), piece_bytes)
    else:
        _fill_by_rows(source, one, payload, place, piece_bytes)


def _in_place(payload: Payload, item: ReadItem, place: Tensor) -> bool:
    """What is wanted lies in one stretch in the file, and so does its place in memory."""
    whole_rows = tuple(item.lengths[1:]) == payload.sizes[1:]
    return (
        whole_rows
        and place.device.type == "cpu"
        and place.dtype == payload.dtype
        and place.is_contiguous()
        and not place.is_conj()
        and not place.is_neg()
    )


def _first_byte(payload: Payload, item: ReadItem) -> int:
    if not payload.sizes:
        return 0
    return int(item.storage_offsets[0]) * _row_bytes(payload)


def _row_bytes(payload: Payload) -> int:
    return math.prod(payload.sizes[1:]) * payload.dtype.itemsize


def _fill_by_rows(
    source: Source, one: Wanted, payload: Payload, place: Tensor, piece_bytes: int
) -> None:
    """Through a buffer that holds a few rows."""
    pinned = place.device.type == "cuda"
    start = one.at + payload.at + _first_byte(payload, one.item)
    rows = int(one.item.lengths[0]) if payload.sizes else 1
    step = max(1, piece_bytes // max(1, _row_bytes(payload)))
    for row in range(0, rows, step):
        shape = (min(step, rows - row), *payload.sizes[1:])
        buffer = torch.empty(shape, dtype=payload.dtype, pin_memory=pinned)
        _read_pieces(source, start + row * _row_bytes(payload), memory_of(buffer), piece_bytes)
        if not payload.sizes:
            place.copy_(buffer[0])
            continue
        part = _narrowed(buffer, one.item, first_dimension=1)
        _copy(part, place.narrow(0, row, shape[0]))


def _copy(part: Tensor, place: Tensor) -> None:
    """Where the place was expanded, one element is all of them."""
    for dimension, step in enumerate(place.stride()):
        if step == 0 and place.size(dimension) > 1:
            part, place = part.narrow(dimension, 0, 1), place.narrow(dimension, 0, 1)
    place.copy_(part)


def _narrowed(tensor: Tensor, item: ReadItem, *, first_dimension: int) -> Tensor:
    for dimension in range(first_dimension, tensor.dim()):
        offset, length = item.storage_offsets[dimension], item.lengths[dimension]
        tensor = tensor.narrow(dimension, offset, length)
    return tensor


def _read_pieces(source: Source, at: int, view: memoryview, piece_bytes: int) -> None:
    for start in range(0, len(view), piece_bytes):
        source.read_into(at + start, view[start : start + piece_bytes])


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU."""
    return memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy()))


def by_position(wanted: Iterable[Wanted]) -> list[Wanted]:
    return sorted(wanted, key=lambda one: (one.at, tuple(one.item.storage_offsets)))
