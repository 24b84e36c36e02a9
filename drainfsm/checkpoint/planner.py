"""Who writes what, and staging it: hooks of ``torch.distributed.checkpoint``'s planner.

A tensor that several ranks hold alike is written once. Large ones are cut along their first
dimension, so that every rank stages and writes an equal share however uneven the tensors are.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from drainfsm.checkpoint.modules import BUFFERS
from drainfsm.checkpoint.replicas import differing, samples_of
from drainfsm.checkpoint.room import Room, check_room, room_for, staged_bytes
from drainfsm.checkpoint.serialised import Serialised
from drainfsm.checkpoint.staging import Staging

CUT_BYTES = 4 << 20
"""A replicated tensor is cut only if each piece is about this large: pieces cost headers."""


class SharePlanner(DefaultSavePlanner):
    """Plans one save of a flat state, and keeps what this rank writes once it is staged."""

    def __init__(self, *, compare: bool = False, copy: bool = False, held_bytes: int = 0) -> None:
        """``compare``: check that tensors of the same name are equal on all ranks. ``copy``: copy
        host tensors too, since training goes on. ``held_bytes``: size of the buffers that exist
        already."""
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.differing: list[str] = []
        """On the coordinator: parameters that turned out to differ."""

        self._compare = compare
        self._copy = copy
        self._held_bytes = held_bytes
        self._staged: dict[MetadataIndex, Tensor | Serialised] = {}

    def set_up_share(self, state: dict[str, Any], share: SavePlan) -> None:
        """In place of planning: the share is known already."""
        self.state_dict = state
        self.finish_plan(share)

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        samples = samples_of(self.state_dict) if self._compare else {}
        room = self.room(self.state_dict)
        return dataclasses.replace(plan, planner_data=_Says(samples=samples, room=room))

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Runs on the coordinator only.

        Raises:
            SaveFailedError: a host has too little memory for what its ranks would stage.
        """
        says: list[_Says] = [plan.planner_data for plan in all_plans]
        self.differing = differing([one.samples for one in says])
        shares = share_out(all_plans)
        needed = [needed_bytes(share, one.room) for share, one in zip(shares, says, strict=True)]
        check_room([one.room for one in says], needed)
        return super().create_global_plan(shares)

    def room(self, state: dict[str, Any]) -> Room:
        return room_for(state, held_bytes=self._held_bytes, copy=self._copy)

    def stage(self, staging: Staging) -> int:
        """Take this rank's share out of the training's hands; returns its size in bytes."""
        total = 0
        with staging.filling():
            for item in self.plan.items:
                value = self._value(item)
                if isinstance(value, Tensor):
                    total += value.numel() * value.element_size()
                    self._staged[item.index] = staging.hold(item.index, value, copy=self._copy)
                else:
                    total += value.size_bytes
                    self._staged[item.index] = value
        self.state_dict = {}
        return total

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        staged = self._staged[write_item.index]
        return staged if isinstance(staged, Tensor) else io.BytesIO(staged.data)

    def _value(self, item: WriteItem) -> Tensor | Serialised:
        value: Any = self.state_dict[item.index.fqn]
        if isinstance(value, Serialised):
            return value
        if hasattr(value, "__get_tensor_shard__"):  # a DTensor
            return self.lookup_object(item.index).detach()  # type: ignore[no-any-return]
        piece: Tensor = value.detach()
        if item.tensor_data is not None and item.tensor_data.chunk.sizes != piece.size():
            chunk = item.tensor_data.chunk
            piece = piece.narrow(0, chunk.offsets[0], chunk.sizes[0])
        return piece


class _Says(NamedTuple):
    """What a rank tells the coordinator along with its plan."""

    samples: dict[str, bytes]
    room: Room


def share_out(plans: list[SavePlan]) -> list[SavePlan]:
    """Every item in exactly one plan, and the plans about equally large."""
    owners: dict[MetadataIndex, list[int]] = defaultdict(list)
    items: dict[MetadataIndex, WriteItem] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            owners[item.index].append(rank)
            items[item.index] = item
    shares: list[list[WriteItem]] = [[] for _ in plans]
    loads = [0] * len(plans)
    movable: list[tuple[int, WriteItem, list[int]]] = []
    for index, ranks in owners.items():
        item = items[index]
        if len(ranks) == 1 or index.fqn.startswith(f"{BUFFERS}/"):
            shares[ranks[0]].append(item)
            loads[ranks[0]] += item_bytes(item)
        else:
            for piece in _cut(item, len(ranks)):
                movable.append((item_bytes(piece), piece, ranks))
    movable.sort(key=lambda entry: entry[0], reverse=True)  # stable: the order is the plans'
    for size_bytes, piece, ranks in movable:
        lightest = min(ranks, key=loads.__getitem__)
        shares[lightest].append(piece)
        loads[lightest] += size_bytes
    return [
        dataclasses.replace(plan, items=share) for plan, share in zip(plans, shares, strict=True)
    ]


def item_bytes(item: WriteItem) -> int:
    """Size of the tensor; objects are small and count as nothing."""
    data = item.tensor_data
    if data is None:
        return 0
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def needed_bytes(share: SavePlan, room: Room) -> int:
    """How much more host memory staging this share takes."""
    return staged_bytes(share.items, room, [item_bytes(item) for item in share.items])


def _cut(item: WriteItem, count: int) -> Iterable[WriteItem]:
    """The item in up to ``count`` pieces along its first dimension, if it is large."""
    data = item.tensor_data
    if item.type is not WriteItemType.TENSOR or data is None or not data.size:
        return [item]
    count = min(count, item_bytes(item) // CUT_BYTES, data.size[0])
    if count < 2:
        return [item]
    rows = math.ceil(data.size[0] / count)
    return [
        _piece(item.index.fqn, data, start=start, rows=min(rows, data.size[0] - start))
        for start in range(0, data.size[0], rows)
    ]


def _piece(fqn: str, data: TensorWriteData, *, start: int, rows: int) -> WriteItem:
    offsets = torch.Size([start] + [0] * (len(data.size) - 1))
    sizes = torch.Size([rows, *data.size[1:]])
    return WriteItem(
        index=MetadataIndex(fqn, offsets),
        type=WriteItemType.SHARD,
        tensor_data=dataclasses.replace(
            data, chunk=ChunkStorageMetadata(offsets=offsets, sizes=sizes)
        ),
    )
