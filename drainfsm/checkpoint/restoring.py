"""Restoring exactly one generation, on all ranks or on none."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from torch.distributed.checkpoint.metadata import Metadata

from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.gate import (
    check_job,
    restore_newest_whole,
    verified_manifest,
)
from drainfsm.checkpoint.objects import Saved
from drainfsm.checkpoint.parts import Parts
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.reader import (
    GenerationReader,
    check_targets,
    get_metadata,
    read_metadata,
    some_of,
    unpickled,
)
from drainfsm.checkpoint.sharing import Sharing, common
from drainfsm.checkpoint.writer import METADATA
from drainfsm.core.manifest import DCP_SAVER, Entry, Manifest
from drainfsm.core.orders import RestoreTarget
from drainfsm.core.words import Verification
from drainfsm.errors import RestoreRefusedError
from drainfsm.store import PosixStore
from drainfsm.store.base import ObjectStore

log = logging.getLogger("drainfsm.checkpoint")


def restore(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, target: RestoreTarget
) -> int:
    """The step that was restored. Collective: what is refused on one rank is refused on all, with
    the same error, so that all fall back together.

    Raises:
        RestoreRefusedError: the generation is not one that this job can continue from.
        ManifestMismatchError: it is not what it was when it was committed.
    """
    restored = restore_newest_whole(
        port,
        store,
        target,
        lambda wanted: _restore_one(port, store, exchange, parts, wanted),
        agree=exchange.from_coordinator,
    )
    return restored.step


def _restore_one(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, target: RestoreTarget
) -> tuple[str, ...]:
    """Names of the parts that had to start anew."""
    resharded = check_job(port, target)
    manifest, metadata = exchange.from_coordinator(partial(_open, port, store, target))
    saved = Saved(
        step=manifest.step,
        world_size=manifest.world_size,
        rank=port.rank,
        ranks=port.world_size,
        resharded=resharded,
    )
    targets = parts.targets(metadata, saved)
    said = exchange.share(lambda: (check_targets(targets, metadata), common(targets)))
    if nobodys := sorted(set.intersection(*(unwanted for unwanted, _ in said))):
        raise RestoreRefusedError(
            f"the checkpoint has what no rank wants: {some_of(nobodys)}; give "
            "session.checkpoint(...) what it was given then"
        )

    reader = GenerationReader(store, manifest)
    check = _to_verify(port, manifest)
    objects: dict[str, bytes] = {}
    to_read, sharing = targets, None
    if not isinstance(store, PosixStore):
        sharing = Sharing(exchange, [shareable for _, shareable in said], targets)
        to_read = sharing.to_read(targets, metadata, manifest)
    exchange.share(lambda: objects.update(reader.fill(metadata, to_read, check=check)))
    if sharing is not None:
        sharing.send()

    def apply() -> tuple[str, ...]:
        return parts.apply(targets | unpickled(manifest.generation_id, objects), saved)

    not_restored = exchange.share(apply)[port.rank]
    if not_restored and exchange.coordinates:
        log.warning(
            f"{manifest.generation_id} is of {manifest.world_size} rank(s), and this job "
            f"has {port.world_size}: {', '.join(not_restored)} could not be restored and start "
            "anew"
        )
    return not_restored


def _open(port: RankPort, store: ObjectStore, target: RestoreTarget) -> tuple[Manifest, Metadata]:
    """What all else depends on. Nothing is asked for twice, and all of it at once."""
    with ThreadPoolExecutor(1, thread_name_prefix="drainfsm-read") as pool:
        data = pool.submit(get_metadata, store, target.generation_id)
        manifest = verified_manifest(port, store, target, saver=DCP_SAVER)
    return manifest, read_metadata(manifest, data.result())


def _to_verify(port: RankPort, manifest: Manifest) -> list[Entry]:
    """The files that this rank hashes: what its predecessor wrote, which it reads anyway. The
    metadata is verified by then."""
    if port.settings.verify != Verification.CHECKSUMS:
        return []
    return [
        entry
        for entry in manifest.entries
        if entry.rank % port.world_size == port.rank and entry.name != METADATA
    ]
