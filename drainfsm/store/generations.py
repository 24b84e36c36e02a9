"""Generations in the store: their manifests, and whether their files match."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable

from drainfsm.core.codec import decode_object, encode_object
from drainfsm.core.manifest import Entry, Manifest, verify_stored
from drainfsm.errors import GenerationPrunedError, ManifestMismatchError
from drainfsm.store.base import ObjectStore
from drainfsm.store.checksums import checksum_of
from drainfsm.store.settling import put_settled

MANIFEST = "manifest.json"
PRUNED = "pruned.json"
"""Stands in the place of a committed generation that the retention policy removed."""


def generation_prefix(generation_id: str) -> str:
    return f"generations/{generation_id}/"


def write_manifest(
    store: ObjectStore, manifest: Manifest, *, pause: Callable[[float], None] = time.sleep
) -> str:
    """Make the manifest durable; returns its digest. The same manifest again changes nothing.

    Raises:
        ManifestMismatchError: the generation has another manifest already.
    """
    name = generation_prefix(manifest.generation_id) + MANIFEST
    data = encode_object(manifest)
    if not put_settled(store, name, data, pause=pause):
        raise ManifestMismatchError(f"{name} is there already, with other content")
    return _digest(data)


def read_manifest(store: ObjectStore, *, generation_id: str, digest: str) -> Manifest:
    """The manifest with that digest.

    Raises:
        GenerationPrunedError: the retention policy removed it.
        ManifestMismatchError: missing, garbled, of an unknown format, or not with that digest.
    """
    name = generation_prefix(generation_id) + MANIFEST
    data = store.get(name)
    if data is None:
        if is_pruned(store, generation_id):
            raise GenerationPrunedError(
                f"generation {generation_id} was committed and has been pruned by `drainfsm gc`: "
                "choose one that it kept"
            )
        raise ManifestMismatchError(f"{name} is missing from {store.url}")
    if (found := _digest(data)) != digest:
        raise ManifestMismatchError(f"{name} has digest {found}, not {digest}: it was changed")
    manifest = decode_object(data, Manifest, what=name)
    if manifest.generation_id != generation_id:
        raise ManifestMismatchError(f"{name} is of generation {manifest.generation_id}")
    return manifest


def is_pruned(store: ObjectStore, generation_id: str) -> bool:
    """Whether the retention policy removed the generation."""
    return store.get(generation_prefix(generation_id) + PRUNED) is not None


def verify_generation(store: ObjectStore, manifest: Manifest, *, checksums: bool) -> None:
    """The store holds exactly the manifest's files, by name and size, and by content if asked.

    Raises:
        ManifestMismatchError: names the first file that is missing, extra or different.
    """
    verify_stored(manifest.entries, list_files(store, manifest.generation_id))
    if checksums:
        verify_checksums(store, manifest.generation_id, manifest.entries)


def list_files(store: ObjectStore, generation_id: str) -> dict[str, int]:
    """What is there of the generation, and how large; its manifest left out."""
    stored = store.list(generation_prefix(generation_id))
    stored.pop(MANIFEST, None)
    return stored


def verify_checksums(store: ObjectStore, generation_id: str, entries: Iterable[Entry]) -> None:
    """Every byte of these files is what the rank that wrote them hashed.

    Raises:
        ManifestMismatchError: names the first file that differs.
    """
    prefix = generation_prefix(generation_id)
    for entry in entries:
        algorithm = entry.checksum.partition(":")[0]
        try:
            with store.reader(prefix + entry.name) as stream:
                found = checksum_of(stream, algorithm=algorithm)
        except FileNotFoundError as error:
            raise ManifestMismatchError(f"file {entry.name} is missing") from error
        check_checksum(entry, found)


def check_checksum(entry: Entry, found: str) -> None:
    """Raises:
    ManifestMismatchError: ``found`` is not the checksum that the manifest has for the file.
    """
    if found != entry.checksum:
        raise ManifestMismatchError(
            f"file {entry.name} has checksum {found}, not {entry.checksum}: it was changed"
        )


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
