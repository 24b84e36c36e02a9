"""Manifest and commit log entries: what makes a generation exist, as data.

A generation is one checkpoint: a directory that is used once, its files, its manifest. The
manifest lists what must be there; the commit record, created put-if-absent, makes it exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from drainfsm.core.chain import LogHead
from drainfsm.errors import ManifestMismatchError

FORMAT_VERSION = 1
"""Version of manifest, claim, commit and requeue records. Readers refuse a higher one."""

SLOT_FORMAT_VERSION = 2
"""Version of claims and commits that are linked to the slot before them. Version 1 is not."""

DCP_SAVER = "torch.distributed.checkpoint"
"""The saver of jobs that do not write their files themselves."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a generation as the rank that wrote it reports it."""

    name: str
    """Path relative to the generation's directory, forward slashes, never leaving it."""

    size_bytes: int
    checksum: str
    """``<algorithm>:<lower-case hex>``; the algorithm is ``xxh3_128``, ``sha256`` or
    ``sha256_tree`` (docs/operate.md says what that is)."""

    rank: int
    """The rank that wrote it."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of expected files of one generation. Its digest names the checkpoint."""

    format_version: int = FORMAT_VERSION
    job_id: str
    epoch: int
    generation_id: str
    step: int
    """Last optimizer step that is in the checkpoint, the same on every rank."""

    world_size: int
    layout: dict[str, int] = {}
    """Parallel layout, e.g. ``{"dp": 4, "tp": 2}``; empty where the job did not declare one."""

    saver: str = DCP_SAVER
    """Only the same saver can read the files again."""

    entries: tuple[Entry, ...]
    created_unix_ms: int

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


class SlotLink(msgspec.Struct, frozen=True, kw_only=True):
    """Ties a slot to its place: a reader sees whether it, or the slot before it, is the one that
    was written."""

    slot: int
    """Its place in the commit log, from 1."""

    before: str
    """``sha256:<hex>`` of the slot before, as stored; empty: there is none."""

    newest_commit: int
    """Place of the newest commit before it; 0: there is none."""

    store_id: str
    """Identity of the store."""

    seal: str = ""
    """SHA-256, in hex, of the slot as stored, with nothing in this place."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="claim"):
    """A slot by which a new attempt takes the job: from here on older epochs are fenced."""

    format_version: int = FORMAT_VERSION
    job_id: str
    epoch: int
    attempt_id: str
    """Unique to the process that claimed; settles an ambiguous answer of the store."""

    claimed_unix_ms: int
    link: SlotLink | None = None
    """None: of format version 1, or not stored yet."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="commit"):
    """The one small object without which a generation does not exist."""

    format_version: int = FORMAT_VERSION
    job_id: str
    epoch: int
    attempt_id: str
    generation_id: str
    manifest_digest: str
    """``sha256:<hex>`` of the manifest's bytes as stored."""

    step: int
    world_size: int
    total_bytes: int
    file_count: int
    committed_unix_ms: int
    log: LogHead | UnsetType = UNSET
    """The attempt's log as it was when this was committed; unset: it is not chained."""

    link: SlotLink | None = None
    """None: of format version 1, or not stored yet."""


Slot = Claim | Commit
"""What one object under ``commits/`` holds."""


def verify_reported(
    entries: Sequence[Entry], *, ranks: Iterable[int], files_per_rank: dict[int, int]
) -> None:
    """Every expected rank reported exactly as many files as it said, and no name came twice.

    Raises:
        ManifestMismatchError: names what is missing, extra or duplicate.
    """
    expected = set(ranks)
    reported = {rank for rank in files_per_rank if rank in expected}
    if missing := sorted(expected - reported):
        raise ManifestMismatchError(f"no report from rank(s) {missing}")
    if strangers := sorted(set(files_per_rank) - expected):
        raise ManifestMismatchError(f"report from rank(s) {strangers} that are not in the job")
    names: set[str] = set()
    counts = dict.fromkeys(expected, 0)
    for entry in entries:
        if entry.name in names:
            raise ManifestMismatchError(f"file {entry.name} was reported twice")
        if entry.name.startswith("/") or ".." in entry.name.split("/") or not entry.name:
            raise ManifestMismatchError(f"file name {entry.name!r} leaves the generation")
        if entry.rank not in expected:
            raise ManifestMismatchError(f"file {entry.name} is of unknown rank {entry.rank}")
        names.add(entry.name)
        counts[entry.rank] += 1
    for rank, count in counts.items():
        if count != files_per_rank[rank]:
            raise ManifestMismatchError(
                f"rank {rank} announced {files_per_rank[rank]} files and listed {count}"
            )


def verify_stored(entries: Iterable[Entry], stored_bytes: dict[str, int]) -> None:
    """What the store lists is exactly what the entries say, by name and size.

    Raises:
        ManifestMismatchError: names the first file that is missing, extra or of another size.
    """
    wanted = {entry.name: entry.size_bytes for entry in entries}
    for name, size in wanted.items():
        if name not in stored_bytes:
            raise ManifestMismatchError(f"file {name} is missing")
        if stored_bytes[name] != size:
            raise ManifestMismatchError(f"file {name} has {stored_bytes[name]} bytes, not {size}")
    if extra := sorted(set(stored_bytes) - set(wanted)):
        raise ManifestMismatchError(f"unexpected file(s) {', '.join(extra[:5])}")
