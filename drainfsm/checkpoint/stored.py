"""Where the bytes of a tensor lie inside what ``torch.save`` wrote for it.

``torch.save`` writes a zip archive without compression: a pickle that describes the tensor comes
first, its bytes follow as they are in memory. Knowing the place, a restore reads them to where they
belong, and makes no tensor in between.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
from functools import lru_cache
from typing import Any, NamedTuple

import torch

HEAD_BYTES = 1 << 10
"""How much of an item is looked at. What describes a tensor of eight dimensions takes 800."""

_PICKLE = b"archive/data.pkl"
_DATA = b"archive/data/0"
_BYTE_ORDER = b"archive/byteorder"
_RECORD = b"PK\x03\x04"
_RECORD_BYTES = 30
_AFTER_RECORD = b"PK\x07\x08"

_DTYPES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}


class Payload(NamedTuple):
    """The bytes of one tensor, row by row."""

    at: int
    """From the beginning of the item."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


class _Described(NamedTuple):
    sizes: tuple[int, ...]
    dtype: torch.dtype


def payload_of(head: bytes) -> Payload | None:
    """What the first ``HEAD_BYTES`` of an item say. None: nothing that is read in place (rows that
    do not follow each other, another byte order, an archive that looks otherwise)."""
    described = _described(head)
    if described is None or _record(head, _BYTE_ORDER, len(sys.byteorder)) != sys.byteorder:
        return None
    at = _content(head, _DATA)
    return None if at is None else Payload(at, *described)


def _described(head: bytes) -> _Described | None:
    at = _content(head, _PICKLE)
    if at is None:
        return None
    end = head.find(_AFTER_RECORD, at)
    return None if end < 0 else _unpickled(head[at:end])


def _record(head: bytes, name: bytes, length: int) -> str | None:
    at = _content(head, name)
    return None if at is None else head[at : at + length].decode("ascii", "replace")


def _content(head: bytes, name: bytes) -> int | None:
    """Where the content of a record of the archive begins."""
    at = head.find(name) - _RECORD_BYTES
    if at < 0 or head[at : at + 4] != _RECORD:
        return None
    name_length, extra_length = struct.unpack_from("<HH", head, at + 26)
    return at + _RECORD_BYTES + int(name_length) + int(extra_length)


@lru_cache(maxsize=4096)
def _unpickled(data: bytes) -> _Described | None:
    """Tensors of one size and type have the same pickle."""
    try:
        found = _Describing(io.BytesIO(data)).load()
    except Exception:  # whatever damaged bytes make of a pickle
        return None
    return found if isinstance(found, _Described) else None


class _Describing(pickle.Unpickler):
    """Builds nothing but a description: no other name is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _describe
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return _describe_untyped
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module in ("torch", "torch.storage"):
            found = getattr(torch, name, None)
            return found if isinstance(found, torch.dtype) else name
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        _, storage, key, _, count = pid
        if key != "0":
            raise pickle.UnpicklingError("a second storage")
        return storage, count


def _describe(
    stored: tuple[str, int],
    offset: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    _requires_grad: Any,
    _hooks: Any,
    *more: Any,
) -> _Described | None:
    storage, count = stored
    if more:  # a view that is conjugated or negated when it is read
        return None
    return _rows(_DTYPES.get(storage), count, offset, sizes, strides)


def _describe_untyped(
    stored: tuple[str, int],
    offset: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    _requires_grad: Any,
    _hooks: Any,
    dtype: torch.dtype,
    *more: Any,
) -> _Described | None:
    storage, size_bytes = stored
    if storage != "UntypedStorage" or more:
        return None
    return _rows(dtype, size_bytes // dtype.itemsize, offset, sizes, strides)


def _rows(
    dtype: torch.dtype | None,
    count: int,
    offset: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
) -> _Described | None:
    if dtype is None or offset != 0 or count != math.prod(sizes):
        return None
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return None
        step *= size
    return _Described(tuple(sizes), dtype)
