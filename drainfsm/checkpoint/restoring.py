"""Restoring exactly one generation, on all ranks or on none."""

from __future__ import annotations

import logging
import time
from functools import partial

from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.gate import (
    check_job,
    committed_target,
    earlier,
    may_fall_back,
    verified_manifest,
)
from drainfsm.checkpoint.objects import Saved
from drainfsm.checkpoint.parts import Parts
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.reader import GenerationReader, check_targets, load, some_of
from drainfsm.core.manifest import DCP_SAVER
from drainfsm.core.orders import RestoreTarget
from drainfsm.core.requeue import RefusedGeneration
from drainfsm.core.words import Verification
from drainfsm.errors import ManifestMismatchError, RestoreRefusedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.generations import verify_checksums

log = logging.getLogger("drainfsm.checkpoint")


def restore(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, target: RestoreTarget
) -> int:
    """The step that was restored. Collective: what is refused on one rank is refused on all, with
    the same error, so that all fall back alike.

    Raises:
        RestoreRefusedError: the generation is not one that this job can continue from.
        ManifestMismatchError: it is not what it was when it was committed.
    """
    began = time.monotonic()
    refused: list[RefusedGeneration] = []
    wanted: RestoreTarget = target
    generation = target.generation_id
    while True:
        try:
            if refused:
                find = partial(committed_target, port, store, generation)
                wanted = exchange.from_coordinator(find)
                port.begin_after(wanted.step)
            not_restored = _restore_one(port, store, exchange, parts, wanted)
            break
        except ManifestMismatchError as error:
            if not may_fall_back(port, error):
                raise
            refused.append(RefusedGeneration(generation_id=generation, reason=str(error)))
            generation = exchange.from_coordinator(partial(earlier, port, store, refused))
    port.report_restored(
        generation_id=wanted.generation_id,
        manifest_digest=wanted.manifest_digest,
        step=wanted.step,
        restore_ms=round((time.monotonic() - began) * 1_000),
        verification=port.settings.verify,
        refused=refused,
        saved_world_size=wanted.world_size,
        saved_layout=wanted.layout,
        not_restored=not_restored,
    )
    return wanted.step


def _restore_one(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, target: RestoreTarget
) -> tuple[str, ...]:
    """Names of the parts that had to start anew."""
    resharded = check_job(port, target)
    manifest = exchange.from_coordinator(
        lambda: verified_manifest(port, store, target, saver=DCP_SAVER)
    )
    if port.settings.verify == Verification.CHECKSUMS:
        share = manifest.entries[port.rank :: port.world_size]
        exchange.share(lambda: verify_checksums(store, manifest.generation_id, share))
    saved = Saved(
        step=manifest.step,
        world_size=manifest.world_size,
        rank=port.rank,
        ranks=port.world_size,
        resharded=resharded,
    )
    reader = GenerationReader(store, manifest, rank=port.rank)
    metadata = exchange.from_coordinator(reader.read_metadata)
    targets = parts.targets(metadata, saved)
    unwanted = exchange.share(lambda: check_targets(targets, metadata))
    if nobodys := sorted(set.intersection(*unwanted)):
        raise RestoreRefusedError(
            f"the checkpoint has what no rank wants: {some_of(nobodys)}; give "
            "session.checkpoint(...) what it was given then"
        )

    def fill() -> tuple[str, ...]:
        load(reader, metadata, targets)
        return parts.apply(targets, saved)

    not_restored = exchange.share(fill)[port.rank]
    if not_restored and exchange.coordinates:
        log.warning(
            f"{manifest.generation_id} is of {manifest.world_size} rank(s), and this job "
            f"has {port.world_size}: {', '.join(not_restored)} could not be restored and start "
            "anew"
        )
    return not_restored
