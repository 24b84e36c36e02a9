"""Writes one rank's share of a generation: a ``StorageWriter`` of ``torch.distributed.checkpoint``.

The layout of the files is ``FileSystemWriter``'s. What differs is where they go (a stream of the
store that is durable when it ends) and that an error in any thread fails the save:
``FileSystemWriter`` with several threads loses the exceptions of all but one.
"""

from __future__ import annotations

import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from drainfsm.checkpoint.files import GenerationFiles
from drainfsm.checkpoint.planner import item_bytes

THREADS = 2
"""One hashes while the other waits for the disk."""

METADATA = ".metadata"
METADATA_VERSION = "1.0.0"
"""What ``FileSystemWriter`` of torch 2.6 to 2.14 writes."""


class GenerationWriter(FileSystemWriter):
    """``files`` collects what was written, with checksums."""

    def __init__(self, generation_id: str, files: GenerationFiles) -> None:
        super().__init__(generation_id, sync_files=False, thread_count=1, per_thread_copy_ahead=0)
        self.fs: Any = files  # (declared by torch as its own file system)
        self.path = ""  # names are relative to the generation
        self._generation_id = generation_id

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        plans = [
            dataclasses.replace(
                plan,
                items=items,
                storage_data=dataclasses.replace(
                    plan.storage_data, prefix=f"{plan.storage_data.prefix}{number}_"
                ),
            )
            for number, items in enumerate(_bundles(plan.items))
        ]
        results: list[WriteResult] = []
        write = super().write_data
        with ThreadPoolExecutor(THREADS, thread_name_prefix="drainfsm-write") as pool:
            for future in [pool.submit(write, part, planner) for part in plans]:
                results += future.result().wait()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Runs on the coordinator only, after every rank's data is durable."""
        metadata.version = METADATA_VERSION
        metadata.storage_data = {r.index: r.storage_data for of_rank in results for r in of_rank}
        metadata.storage_meta = self.storage_meta()
        with self.fs.create_stream(METADATA, "wb") as stream:
            stream.write(pickle.dumps(metadata))

    @property
    def checkpoint_id(self) -> str:
        return self._generation_id


def _bundles(items: list[WriteItem]) -> list[list[WriteItem]]:
    """As many files as there are threads, about equally large; none of them empty."""
    bundles: list[list[WriteItem]] = [[] for _ in range(min(THREADS, len(items)))]
    loads = [0] * len(bundles)
    for item in sorted(items, key=item_bytes, reverse=True):
        lightest = loads.index(min(loads))
        bundles[lightest].append(item)
        loads[lightest] += item_bytes(item) + 1
    return bundles
