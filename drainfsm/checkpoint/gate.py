"""Whether a committed generation is one that this job can continue from. No torch."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from drainfsm.checkpoint.port import RankPort
from drainfsm.core.events import CheckpointRestored
from drainfsm.core.manifest import Manifest, verify_stored
from drainfsm.core.orders import RestoreTarget, target_of
from drainfsm.core.requeue import RefusedGeneration
from drainfsm.core.words import RESTORE_CHECKS, OnRefused
from drainfsm.errors import (
    CheckpointError,
    ConfigError,
    FormatUnknownError,
    ManifestMismatchError,
    RestoreRefusedError,
)
from drainfsm.store import CommitLog
from drainfsm.store.base import ObjectStore
from drainfsm.store.generations import is_pruned, list_files, read_manifest

log = logging.getLogger("drainfsm.checkpoint")
ALLOW = "set reshard = true in [checkpoint]"


def check_job(port: RankPort, target: RestoreTarget) -> bool:
    """What every rank can tell by itself, with the same answer. True: the job has another shape
    than the one that saved, and may.

    Raises:
        RestoreRefusedError: it has, and may not.
    """
    settings = port.settings
    if settings.verify not in RESTORE_CHECKS:
        raise ConfigError(f"verify '{settings.verify}': choose {' or '.join(RESTORE_CHECKS)}")
    if settings.reshard:
        return (target.world_size, target.layout) != (port.world_size, settings.layout)
    if target.world_size != port.world_size:
        raise RestoreRefusedError(
            f"generation {target.generation_id} was saved by {target.world_size} ranks, and this "
            f"job has {port.world_size}: start it with {target.world_size}, or {ALLOW}"
        )
    if target.layout != settings.layout:
        raise RestoreRefusedError(
            f"generation {target.generation_id} was saved with layout {target.layout}, and this "
            f"job declares {settings.layout}: declare that one, or {ALLOW}"
        )
    return False


def earlier(port: RankPort, store: ObjectStore, refused: Sequence[RefusedGeneration]) -> str:
    """The generation committed before those that were refused, and not pruned since.

    Raises:
        RestoreRefusedError: there is none.
    """
    before = CommitLog(store, job_id=port.job_id).before(refused[-1].generation_id)
    commit = next((c for c in before if not is_pruned(store, c.generation_id)), None)
    if commit is None:
        reasons = "; ".join(f"{one.generation_id}: {one.reason}" for one in refused)
        raise RestoreRefusedError(f"no committed generation can be restored: {reasons}")
    log.warning(
        f"{refused[-1].generation_id} cannot be restored ({refused[-1].reason}): "
        f"falling back to {commit.generation_id}, step {commit.step}"
    )
    return commit.generation_id


def committed_target(port: RankPort, store: ObjectStore, generation_id: str) -> RestoreTarget:
    """What to restore of a generation that is in the commit log.

    Raises:
        ManifestMismatchError: its manifest is missing, or not the one that was committed.
    """
    found = CommitLog(store, job_id=port.job_id).find(generation_id)
    if found is None:
        raise RestoreRefusedError(f"no commit names generation {generation_id}")
    commit = found[1]
    manifest = read_manifest(store, generation_id=generation_id, digest=commit.manifest_digest)
    return target_of(commit, layout=manifest.layout)


def may_fall_back(port: RankPort, error: CheckpointError) -> bool:
    """Only damage is a reason: a sound generation of a newer drainfsm or another job is not given
    up for an older one."""
    damaged = isinstance(error, ManifestMismatchError) and not isinstance(error, FormatUnknownError)
    return damaged and port.settings.on_refused == OnRefused.FALLBACK


def restore_newest_whole(
    port: RankPort,
    store: ObjectStore,
    target: RestoreTarget,
    restore: Callable[[RestoreTarget], Sequence[str]],
    *,
    agree: Callable[[Callable[[], Any]], Any] = lambda find: find(),
) -> RestoreTarget:
    """The recorded generation, or the one to fall back to where that is damaged and falling back
    is allowed. ``restore`` is called with it, and the outcome reported.

    ``restore``: returns the names of what had to start anew. ``agree``: makes one rank's finding
    that of all; without it each rank finds it by itself.

    Raises:
        RestoreRefusedError: there is nothing that this job can continue from.
        ManifestMismatchError: the generation is damaged, and nothing else may be taken.
    """
    began = time.monotonic()
    refused: list[RefusedGeneration] = []
    generation = target.generation_id
    while True:
        try:
            if refused:
                target = agree(partial(committed_target, port, store, generation))
                port.begin_after(target.step)
            not_restored = restore(target)
            break
        except ManifestMismatchError as error:
            if not may_fall_back(port, error):
                raise
            refused.append(RefusedGeneration(generation_id=generation, reason=str(error)))
            generation = agree(partial(earlier, port, store, refused))
    restored = CheckpointRestored(
        generation_id=target.generation_id,
        manifest_digest=target.manifest_digest,
        step=target.step,
        restore_ms=round((time.monotonic() - began) * 1_000),
        verification=port.settings.verify,
        refused=tuple(refused),
        saved_world_size=target.world_size,
        saved_layout=target.layout,
        not_restored=tuple(not_restored),
    )
    port.report_restored(restored)
    return target


@contextlib.contextmanager
def refusals_reported(port: RankPort, target: RestoreTarget) -> Iterator[None]:
    """Report whatever ends a restore, so that the log says why the ranks ended."""
    try:
        yield
    except Exception as error:
        port.report_restore_refused(
            generation_id=target.generation_id,
            step=target.step,
            error=type(error).__name__,
            reason=str(error),
        )
        raise


def verified_manifest(
    port: RankPort, store: ObjectStore, target: RestoreTarget, *, saver: str
) -> Manifest:
    """The manifest, after the fast gate: every file is there, with its size, and no other.

    Raises:
        RestoreRefusedError: the generation is of another job, step, size, layout or saver.
        ManifestMismatchError: it is not what it was when it was committed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="drainfsm-read") as pool:
        stored = pool.submit(list_files, store, target.generation_id)
        manifest = read_manifest(
            store, generation_id=target.generation_id, digest=target.manifest_digest
        )
    for what, there, here in (
        ("job", manifest.job_id, port.job_id),
        ("step", manifest.step, target.step),
        ("world size", manifest.world_size, target.world_size),
        ("layout", manifest.layout, target.layout),
        ("saver", manifest.saver, saver),
    ):
        if there != here:
            raise RestoreRefusedError(
                f"the manifest of {target.generation_id} says {what} {there}, not {here}"
            )
    verify_stored(manifest.entries, stored.result())
    return manifest
