"""Small tensors as ``torch.save`` writes them, without calling it for each.

What ``torch.save`` puts around the bytes of a tensor depends on its sizes and type alone, once its
own checksums are left out. So it is asked once for each of these, and the rest is a copy.
"""

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from drainfsm.checkpoint.filling import memory_of
from drainfsm.checkpoint.stored import HEAD_BYTES, payload_of

SMALL_BYTES = 1 << 20
"""Above, calling ``torch.save`` costs nothing beside the bytes themselves."""


class _Around(NamedTuple):
    """What stands before and after the bytes of a tensor."""

    head: bytes
    tail: bytes


def archive_of(tensor: Tensor) -> list[bytes | memoryview] | None:
    """What ``torch.save`` would write for this tensor on the CPU, in pieces; None: it has to be
    called. The tensor's own memory is among them."""
    if (
        type(tensor) is not Tensor
        or tensor.nbytes > SMALL_BYTES
        or tensor.is_quantized
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return None
    found = _around(tuple(tensor.size()), tensor.dtype)
    return None if found is None else [found.head, memory_of(tensor), found.tail]


@contextmanager
def without_zip_checksums() -> Generator[None, None, None]:
    """``torch.save`` need not hash what is hashed here anyway. Holds for this thread only."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


@lru_cache(maxsize=1024)
def _around(sizes: tuple[int, ...], dtype: torch.dtype) -> _Around | None:
    """None: the bytes are not in one piece, or what is around them depends on them."""
    zeros = torch.zeros(sizes, dtype=dtype)
    ones = torch.zeros(sizes, dtype=dtype)
    memory_of(ones)[:] = b"\xff" * ones.nbytes
    one, other = _cut_out(zeros), _cut_out(ones)
    return one if one == other else None


def _cut_out(tensor: Tensor) -> _Around | None:
    file = io.BytesIO()
    with without_zip_checksums():
        torch.save(tensor, file)
    data = file.getvalue()
    payload = payload_of(data[:HEAD_BYTES])
    if payload is None:
        return None
    return _Around(data[: payload.at], data[payload.at + tensor.nbytes :])
