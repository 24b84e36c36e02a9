"""Reads one rank's part of a generation that ``torch.distributed.checkpoint`` has planned."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from drainfsm.checkpoint.filling import (
    GAP_BYTES,
    Hashed,
    Plain,
    Resolve,
    Wanted,
    by_position,
    fill,
    split,
)
from drainfsm.checkpoint.parts import RANKS
from drainfsm.checkpoint.writer import METADATA
from drainfsm.core.manifest import Entry, Manifest
from drainfsm.errors import DrainfsmError, ManifestMismatchError, RestoreRefusedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.checksums import checksum_of, new_hasher
from drainfsm.store.generations import check_checksum, generation_prefix

READERS = 4
"""Files, or stretches of one, that are read at once. One alone leaves a fast disk idle."""

STRETCH_BYTES = 32 << 20
"""A file that is not hashed here is read in stretches of about this size."""


AROUND_BYTES = 4 << 10
"""What ``torch.save`` writes around a tensor is less."""


class _Task(NamedTuple):
    name: str
    wanted: Sequence[Wanted]
    check: Entry | None
    """Hash the whole file, and compare."""


def get_metadata(store: ObjectStore, generation_id: str) -> bytes | None:
    """The file that ``read_metadata`` reads; None: there is none."""
    return store.get(generation_prefix(generation_id) + METADATA)


def read_metadata(manifest: Manifest, data: bytes | None) -> Metadata:
    """Its checksum is always verified: the file is small, and everything else depends on it.

    Raises:
        ManifestMismatchError: it is not what the manifest says.
    """
    entry = next((e for e in manifest.entries if e.name == METADATA), None)
    if entry is None or data is None:
        raise ManifestMismatchError(f"file {METADATA} is missing")
    algorithm = entry.checksum.partition(":")[0]
    if checksum_of(io.BytesIO(data), algorithm=algorithm) != entry.checksum:
        raise ManifestMismatchError(f"file {METADATA} is not what the manifest says")
    metadata: Metadata = pickle.loads(data)
    return metadata


class GenerationReader:
    """Reads a generation out of the store."""

    def __init__(self, store: ObjectStore, manifest: Manifest) -> None:
        self.generation_id = manifest.generation_id
        self._size_bytes = {entry.name: entry.size_bytes for entry in manifest.entries}
        self._store = store
        self._prefix = generation_prefix(manifest.generation_id)

    def fill(
        self, metadata: Metadata, targets: dict[str, Any], *, check: Iterable[Entry] = ()
    ) -> dict[str, bytes]:
        """Fill the tensors of ``targets`` in place. Returns what stands where they have None, as it
        was written: nothing is unpickled before what was to be checked is. ``check``: the files
        that this rank hashes, whether it wants something of them or not.

        Raises:
            RestoreRefusedError: the checkpoint lacks something, or has it in another size.
            ManifestMismatchError: a file was changed, or is not a checkpoint.
        """
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(targets, metadata, is_coordinator=False)
        try:
            plan = planner.create_local_plan()
        except (RuntimeError, ValueError) as error:
            raise RestoreRefusedError(str(error)) from error
        wanted: dict[str, list[Wanted]] = {}
        for item in plan.items:
            stored = metadata.storage_data[item.storage_index]
            one = Wanted(
                stored.offset, stored.length, item, _is_whole(metadata, item, stored.length)
            )
            wanted.setdefault(stored.relative_path, []).append(one)
        tasks = list(_tasks(wanted, {entry.name: entry for entry in check}))
        return self._run(tasks, planner.resolve_tensor)

    def _run(self, tasks: Sequence[_Task], resolve: Resolve) -> dict[str, bytes]:
        objects: dict[str, bytes] = {}
        with ThreadPoolExecutor(READERS, thread_name_prefix="drainfsm-read") as pool:
            running = [pool.submit(self._read, task, resolve) for task in tasks]
            try:
                for done in running:
                    objects |= done.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return objects

    def _read(self, task: _Task, resolve: Resolve) -> dict[str, bytes]:
        name, size_bytes = self._prefix + task.name, self._size_bytes.get(task.name, 0)
        with (
            self._reading(task.name),
            self._store.ranges(name, size_bytes=size_bytes) as ranges,
        ):
            if task.check is None:
                return fill(Plain(ranges.ahead(_spans(task.wanted))), task.wanted, resolve)
            algorithm = task.check.checksum.partition(":")[0]
            source = Hashed(ranges.ahead([(0, ranges.size_bytes)]), new_hasher(algorithm))
            try:
                return fill(source, task.wanted, resolve)
            finally:
                check_checksum(task.check, f"{algorithm}:{source.hexdigest()}")

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except DrainfsmError:
            raise
        except FileNotFoundError as error:
            raise ManifestMismatchError(f"file {name} is missing") from error
        except Exception as error:  # whatever damaged bytes make of torch.load
            raise _unreadable(self.generation_id, error) from error


def unpickled(generation_id: str, objects: dict[str, bytes]) -> dict[str, Any]:
    """Onto the CPU: another rank's device may not exist here.

    Raises:
        ManifestMismatchError: the bytes are no object, or need code that is not here.
    """
    try:
        return {
            name: torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
            for name, data in objects.items()
        }
    except Exception as error:  # whatever damaged bytes make of torch.load
        raise _unreadable(generation_id, error) from error


def load(reader: GenerationReader, metadata: Metadata, targets: dict[str, Any]) -> None:
    """Fill the tensors of ``targets`` in place, and put objects in the place of None.

    Raises:
        RestoreRefusedError: the checkpoint lacks something, or has it in another size.
        ManifestMismatchError: its bytes are not a checkpoint.
    """
    targets |= unpickled(reader.generation_id, reader.fill(metadata, targets))


def _unreadable(generation_id: str, error: Exception) -> ManifestMismatchError:
    return ManifestMismatchError(
        f"{generation_id} cannot be read ({type(error).__name__}: {error}); "
        'verify = "checksums" tells which file was changed'
    )


def _tasks(wanted: dict[str, list[Wanted]], checks: dict[str, Entry]) -> Iterator[_Task]:
    """The largest first. A file that is hashed is one task, others are cut into stretches."""
    for name in sorted(checks, key=lambda name: checks[name].size_bytes, reverse=True):
        yield _Task(name, by_position(wanted.get(name, ())), checks[name])
    for name in sorted(wanted.keys() - checks.keys()):
        for stretch in _stretches(by_position(wanted[name])):
            yield _Task(name, stretch, None)


def _is_whole(metadata: Metadata, item: ReadItem, length: int) -> bool:
    """All of the item is wanted, as far as its length tells."""
    described = metadata.state_dict_metadata[item.storage_index.fqn]
    if not isinstance(described, TensorStorageMetadata):
        return True
    wanted_bytes = math.prod(item.lengths) * described.properties.dtype.itemsize
    return wanted_bytes + AROUND_BYTES >= length


def _spans(wanted: Sequence[Wanted]) -> Iterator[tuple[int, int]]:
    """What is certainly read, in the order of the file; neighbours are one."""
    start, end = 0, 0
    for one in wanted:
        if not one.whole or one.at < start:
            continue
        if one.at - end > GAP_BYTES:
            if end:
                yield start, end
            start = one.at
        end = max(end, one.end)
    if end:
        yield start, end


def _stretches(wanted: Sequence[Wanted]) -> Iterator[Sequence[Wanted]]:
    stretch: list[Wanted] = []
    size_bytes = 0
    for one in wanted:
        count = one.length // STRETCH_BYTES
        for part in split(one, count):
            stretch.append(part)
            size_bytes += one.length // max(1, count)
            if size_bytes >= STRETCH_BYTES:
                yield stretch
                stretch, size_bytes = [], 0
    if stretch:
        yield stretch


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
