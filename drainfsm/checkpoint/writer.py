"""Writes one rank's share of a generation: a ``StorageWriter`` of ``torch.distributed.checkpoint``.

The layout of the files is ``FileSystemWriter``'s. What differs is where they go (a stream of the
store that is durable when it ends) and that an error in any thread fails the save:
``FileSystemWriter`` with several threads loses the exceptions of all but one.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from drainfsm.checkpoint.archives import archive_of
from drainfsm.checkpoint.files import GenerationFiles
from drainfsm.checkpoint.places import Places, ReportedPlaces
from drainfsm.checkpoint.planner import item_bytes

THREADS = 2
"""One hashes while the other waits for the disk."""

METADATA = ".metadata"

FRAME_BYTES = 1 << 20
"""Small tensors are written so many bytes at a time."""


class GenerationWriter(FileSystemWriter):
    """``files`` collects what was written, with checksums."""

    def __init__(self, generation_id: str, files: GenerationFiles) -> None:
        super().__init__(generation_id, sync_files=False, thread_count=1, per_thread_copy_ahead=0)
        self.fs: Any = files  # (declared by torch as its own file system)
        self.path = ""  # names are relative to the generation
        self._generation_id = generation_id

    def write_share(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """In an order that is the same whenever the plan is."""
        prefix = plan.storage_data.prefix
        with ThreadPoolExecutor(THREADS, thread_name_prefix="drainfsm-write") as pool:
            files = [
                pool.submit(self._write_file, f"{prefix}{number}_0.distcp", items, planner)
                for number, items in enumerate(_bundles(plan.items))
            ]
            return [result for file in files for result in file.result()]

    def _write_file(
        self, name: str, items: list[WriteItem], planner: SavePlanner
    ) -> list[WriteResult]:
        results: list[WriteResult] = []
        size_bytes = sum(map(item_bytes, items))
        with self.fs.create_stream(name, "wb", size_bytes=size_bytes) as stream:
            frame = Frame(stream)
            for item in items:
                began = frame.tell()
                data: Any = planner.resolve_data(item)
                if item.type is WriteItemType.BYTE_IO:
                    frame.add([data.getbuffer()])
                else:
                    frame.add_tensor(data)
                length = frame.tell() - began
                results.append(WriteResult(item.index, length, _StorageInfo(name, began, length)))
            frame.flush()
        return results

    def write_metadata(self, places: Places, reports: list[ReportedPlaces]) -> None:
        """Runs on the coordinator only, after every rank's data is durable."""
        with self.fs.create_stream(METADATA, "wb") as stream:
            stream.write(places.metadata(reports, self.storage_meta()))

    @property
    def checkpoint_id(self) -> str:
        return self._generation_id


class Frame:
    """Small things for a file, put together into one write."""

    def __init__(self, stream: io.IOBase) -> None:
        self._stream: Any = stream
        self._pieces: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._written_bytes = 0

    def tell(self) -> int:
        """Where in the file the next thing begins."""
        return self._written_bytes + self._held_bytes

    def add(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._pieces += pieces
        self._held_bytes += sum(map(len, pieces))
        if self._held_bytes >= FRAME_BYTES:
            self.flush()

    def add_tensor(self, tensor: Tensor) -> None:
        """As ``torch.save`` writes it."""
        pieces = archive_of(tensor)
        if pieces is not None:
            self.add(pieces)
            return
        self.flush()
        if tensor.untyped_storage().size() != tensor.nbytes:
            tensor = tensor.clone()  # or all of what it is a part of would be written
        torch.save(tensor, self._stream)
        self._written_bytes = self._stream.tell()

    def flush(self) -> None:
        if self._pieces:
            self._stream.write(b"".join(self._pieces))
            self._written_bytes += self._held_bytes
            self._pieces, self._held_bytes = [], 0


def _bundles(items: list[WriteItem]) -> list[list[WriteItem]]:
    """As many files as there are threads, about equally large; none of them empty. Objects come
    last: their length varies, and what is before them stays where it was at the last save."""
    bundles: list[list[WriteItem]] = [[] for _ in range(min(THREADS, len(items)))]
    loads = [0] * len(bundles)
    sized = [(item_bytes(item), item.type is not WriteItemType.BYTE_IO, item) for item in items]
    for size_bytes, _, item in sorted(sized, key=lambda one: one[:2], reverse=True):
        lightest = loads.index(min(loads))
        bundles[lightest].append(item)
        loads[lightest] += size_bytes + 1
    return bundles
