"""Clean-up: what the store holds, and the removal of what ``store/retention.py`` releases.

A committed generation leaves a tombstone, ``pruned.json``, in its place: its commit slot stays, as
the order of the commit log must stay whole, and a restore that asks for it is refused with that
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from drainfsm.core.codec import encode_object
from drainfsm.core.manifest import FORMAT_VERSION
from drainfsm.errors import StoreError
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import CommitLog
from drainfsm.store.generations import MANIFEST, PRUNED, generation_prefix
from drainfsm.store.requeues import read_requeue
from drainfsm.store.retention import Holding, Verdict
from drainfsm.store.settling import put_settled

GENERATIONS = "generations/"


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What a pruned generation leaves behind."""

    format_version: int = FORMAT_VERSION
    generation_id: str
    manifest_digest: str
    step: int
    pruned_unix_ms: int


def survey(store: ObjectStore, *, job_id: str) -> Holding:
    """What the store holds now.

    The newest claim is read first and the commits after it: every commit of an older epoch is then
    among the commits, although attempts go on meanwhile.

    Raises:
        CommitLogError: the commit log is damaged, or of another job: then nothing may go.
    """
    log = CommitLog(store, job_id=job_id)
    epoch = log.head().epoch
    commits = tuple(commit for _, commit in log.commits())
    records = {}
    for number in range(epoch, 0, -1):
        record = read_requeue(store, epoch=number)
        if record is not None:
            records[number] = record
            break
    stored: dict[str, int] = {}
    pruned = set()
    for name, size_bytes in store.list(GENERATIONS).items():
        generation_id, _, inner = name.partition("/")
        if inner == PRUNED:
            pruned.add(generation_id)
        elif inner:
            stored[generation_id] = stored.get(generation_id, 0) + size_bytes
    return Holding(
        epoch=epoch,
        commits=commits,
        records=records,
        stored_bytes=stored,
        pruned=frozenset(pruned),
    )


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    error: str = ""
    """Not empty: it could not be removed, or not completely; the next run goes on with it."""


def remove(
    store: ObjectStore, verdicts: Iterable[Verdict], *, now_unix_ms: Callable[[], int]
) -> Iterator[Removed]:
    """Remove what the verdicts release, one by one. One that fails does not stop the others."""
    for verdict in verdicts:
        if not verdict.removes:
            continue
        error = ""
        try:
            _remove(store, verdict, now_unix_ms=now_unix_ms())
        except (StoreError, OSError) as failure:
            error = str(failure) or repr(failure)
        yield Removed(verdict=verdict, error=error)


def _remove(store: ObjectStore, verdict: Verdict, *, now_unix_ms: int) -> None:
    prefix, commit = generation_prefix(verdict.generation_id), verdict.commit
    if commit is None:
        store.delete_tree(prefix)
        return
    tombstone = Tombstone(
        generation_id=commit.generation_id,
        manifest_digest=commit.manifest_digest,
        step=commit.step,
        pruned_unix_ms=now_unix_ms,
    )
    put_settled(store, prefix + PRUNED, encode_object(tombstone))
    store.delete(prefix + MANIFEST)  # first: from here on it is refused as a whole
    for name in store.list(prefix):
        if name != PRUNED:
            store.delete(prefix + name)
