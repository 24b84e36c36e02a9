"""Restoring exactly one generation, on all ranks or on none."""

from __future__ import annotations

import logging

from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.gate import (
    check_job,
    restore_newest_whole,
    verified_manifest,
)
from drainfsm.checkpoint.objects import Saved
from drainfsm.checkpoint.parts import Parts
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.reader import GenerationReader, check_targets, some_of, unpickled
from drainfsm.core.manifest import DCP_SAVER, Entry, Manifest
from drainfsm.core.orders import RestoreTarget
from drainfsm.core.words import Verification
from drainfsm.errors import RestoreRefusedError
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
    manifest = exchange.from_coordinator(
        lambda: verified_manifest(port, store, target, saver=DCP_SAVER)
    )
    saved = Saved(
        step=manifest.step,
        world_size=manifest.world_size,
        rank=port.rank,
        ranks=port.world_size,
        resharded=resharded,
    )
    reader = GenerationReader(store, manifest)
    metadata = exchange.from_coordinator(reader.read_metadata)
    targets = parts.targets(metadata, saved)
    unwanted = exchange.share(lambda: check_targets(targets, metadata))
    if nobodys := sorted(set.intersection(*unwanted)):
        raise RestoreRefusedError(
            f"the checkpoint has what no rank wants: {some_of(nobodys)}; give "
            "session.checkpoint(...) what it was given then"
        )

    check = _to_verify(port, manifest)
    objects: dict[str, bytes] = {}
    exchange.share(lambda: objects.update(reader.fill(metadata, targets, check=check)))

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


def _to_verify(port: RankPort, manifest: Manifest) -> list[Entry]:
    """The files that this rank hashes: what its predecessor wrote, which it reads anyway."""
    if port.settings.verify != Verification.CHECKSUMS:
        return []
    return [entry for entry in manifest.entries if entry.rank % port.world_size == port.rank]
