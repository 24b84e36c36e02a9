"""Loads a generation as all of its ranks would, in one process and piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from drainfsm.checkpoint.parts import rank_key
from drainfsm.checkpoint.reader import GenerationReader, get_metadata, load, read_metadata
from drainfsm.core.manifest import DCP_SAVER, Manifest
from drainfsm.errors import ManifestMismatchError
from drainfsm.store.base import ObjectStore

PIECE_BYTES = 256 << 20
"""Bytes of tensors held at a time; a larger tensor is held alone."""


class Loaded(NamedTuple):
    tensor_count: int
    tensor_bytes: int
    object_count: int
    not_unpickled: tuple[str, ...]
    """Objects that need the job's own code, so that only their bytes were read."""


def can_load(manifest: Manifest) -> bool:
    """Whether the files were written by the saver that this package can restore itself."""
    return manifest.saver == DCP_SAVER


def load_generation(store: ObjectStore, manifest: Manifest) -> Loaded:
    """Load every tensor and every object of the checkpoint, and its metadata.

    Raises:
        ManifestMismatchError: a rank's part is missing, or something cannot be loaded.
    """
    reader = GenerationReader(store, manifest)
    metadata = read_metadata(manifest, get_metadata(store, manifest.generation_id))
    tensor_count = tensor_bytes = 0
    for piece in _pieces(metadata):
        load(reader, metadata, piece)
        tensor_count += len(piece)
        tensor_bytes += sum(tensor.nbytes for tensor in piece.values())
    names = _objects(metadata)
    for rank in range(manifest.world_size):
        if rank_key(rank) not in names:
            raise ManifestMismatchError(f"the checkpoint lacks {rank_key(rank)}")
    opaque = tuple(name for name in names if not _unpickles(reader, metadata, name, manifest))
    return Loaded(tensor_count, tensor_bytes, len(names), opaque)


def _pieces(metadata: Metadata) -> Iterator[dict[str, Any]]:
    piece: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue
        tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
        if piece and sum(t.nbytes for t in piece.values()) + tensor.nbytes > PIECE_BYTES:
            yield piece
            piece = {}
        piece[name] = tensor
    if piece:
        yield piece


def _objects(metadata: Metadata) -> list[str]:
    return [
        name
        for name, entry in metadata.state_dict_metadata.items()
        if not isinstance(entry, TensorStorageMetadata)
    ]


def _unpickles(reader: GenerationReader, metadata: Metadata, name: str, manifest: Manifest) -> bool:
    """False: it needs the job's own code. A rank's own part must have the manifest's step."""
    target: dict[str, Any] = {name: None}
    try:
        load(reader, metadata, target)
    except ManifestMismatchError as error:
        if isinstance(error.__cause__, ImportError | AttributeError):
            return False
        raise
    own = target[name]
    if isinstance(own, dict) and own.get("step", manifest.step) != manifest.step:
        raise ManifestMismatchError(f"{name} is of step {own['step']}, not {manifest.step}")
    return True
