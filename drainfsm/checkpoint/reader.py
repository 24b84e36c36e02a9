"""Reads one rank's part of a generation: hooks of ``torch.distributed.checkpoint``'s reader."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from drainfsm.checkpoint.files import GenerationFiles
from drainfsm.checkpoint.parts import RANKS
from drainfsm.checkpoint.writer import METADATA
from drainfsm.core.manifest import Manifest
from drainfsm.errors import ManifestMismatchError, RestoreRefusedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.checksums import checksum_of
from drainfsm.store.generations import generation_prefix


class GenerationReader(FileSystemReader):
    """Reads a generation out of the store."""

    def __init__(self, store: ObjectStore, manifest: Manifest, *, rank: int) -> None:
        super().__init__(manifest.generation_id)
        prefix = generation_prefix(manifest.generation_id)
        self.fs: Any = GenerationFiles(store, prefix, rank=rank)
        self.path = ""
        self._manifest = manifest
        self._store = store
        self._prefix = prefix

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Its checksum is always verified: the file is small, and everything else depends on it.

        Raises:
            ManifestMismatchError: it is not what the manifest says.
        """
        entry = next((e for e in self._manifest.entries if e.name == METADATA), None)
        data = self._store.get(self._prefix + METADATA)
        if entry is None or data is None:
            raise ManifestMismatchError(f"file {METADATA} is missing")
        algorithm = entry.checksum.partition(":")[0]
        if checksum_of(io.BytesIO(data), algorithm=algorithm) != entry.checksum:
            raise ManifestMismatchError(f"file {METADATA} is not what the manifest says")
        metadata: Metadata = pickle.loads(data)
        return metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """In the order of the files, so that a store far away is read in one direction."""

        def place(item: ReadItem) -> tuple[str, int]:
            stored = self.storage_data[item.storage_index]
            return stored.relative_path, stored.offset

        return LoadPlan(sorted(plan.items, key=place))


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Onto the CPU: another rank's device may not exist here."""
        loaded = torch.load(value, map_location="cpu", weights_only=False)
        self.state_dict[read_item.dest_index.fqn] = loaded


def load(reader: GenerationReader, metadata: Metadata, targets: dict[str, Any]) -> None:
    """Fill the tensors of ``targets`` in place, and put objects in the place of None.

    Raises:
        RestoreRefusedError: the checkpoint lacks something, or has it in another size.
        ManifestMismatchError: its bytes are not a checkpoint.
    """
    planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(targets, metadata, is_coordinator=False)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    try:
        plan = planner.create_local_plan()
    except (RuntimeError, ValueError) as error:
        raise RestoreRefusedError(str(error)) from error
    try:
        reader.read_data(reader.prepare_local_plan(plan), planner).wait()
    except Exception as error:  # whatever damaged bytes make of torch.load
        raise ManifestMismatchError(
            f"{reader.checkpoint_id} cannot be read ({type(error).__name__}: {error}); "
            'verify = "checksums" tells which file was changed'
        ) from error


def check_targets(targets: dict[str, Any], metadata: Metadata) -> set[str]:
    """What the checkpoint has and this rank does not want. Other ranks may want it.

    Raises:
        RestoreRefusedError: something wanted is missing, or has another size or type.
    """
    stored = metadata.state_dict_metadata
    if missing := sorted(targets.keys() - stored.keys()):
        raise RestoreRefusedError(f"the checkpoint lacks {some_of(missing)}")
    for key, value in targets.items():
        entry = stored[key]
        if isinstance(value, Tensor) != isinstance(entry, TensorStorageMetadata):
            raise RestoreRefusedError(f"{key} is a tensor on one side only")
        if isinstance(value, Tensor) and isinstance(entry, TensorStorageMetadata):
            there = (tuple(entry.size), entry.properties.dtype)
            here = (tuple(value.size()), value.dtype)
            if there != here:
                raise RestoreRefusedError(f"{key} was saved as {there}, and is {here} here")
    return {key for key in stored.keys() - targets.keys() if not key.startswith(f"{RANKS}/")}


def some_of(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
