"""Host memory that holds what is being written while training changes the original."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from drainfsm.checkpoint.randomness import cuda_in_use


class Staging:
    """Buffers that are allocated at the first save and used again by every later one."""

    def __init__(self) -> None:
        self._buffers: dict[MetadataIndex, Tensor] = {}
        self._used: set[MetadataIndex] = set()

    @property
    def held_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Around all calls of ``hold`` for one save; at the end every copy is complete."""
        self._used.clear()
        yield
        for unused in self._buffers.keys() - self._used:
            del self._buffers[unused]
        if cuda_in_use():
            torch.cuda.current_stream().synchronize()

    def hold(self, index: MetadataIndex, tensor: Tensor, *, copy: bool) -> Tensor:
        """The tensor's content in host memory; the tensor itself if it is there already and
        ``copy`` is not asked for. Of no class of its own: a restore would refuse to load that."""
        if tensor.device.type == "cpu" and not copy:
            return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)
        buffer = self._buffers.get(index)
        if buffer is None or buffer.size() != tensor.size() or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=pinned)
            self._buffers[index] = buffer
        self._used.add(index)
        buffer.copy_(tensor, non_blocking=True)
        return buffer
