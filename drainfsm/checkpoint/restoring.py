"""Restoring exactly one generation, on all ranks or on none."""

from __future__ import annotations

import time

from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.gate import CHECKSUMS, check_job, verified_manifest
from drainfsm.checkpoint.parts import Parts
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.reader import GenerationReader, check_targets, load, some_of
from drainfsm.core.manifest import DCP_SAVER, Manifest
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import RestoreRefusedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.generations import verify_checksums


def restore(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, target: RestoreTarget
) -> None:
    """Collective. What is refused on one rank is refused on all, with the same error.

    Raises:
        RestoreRefusedError: the generation is not one that this job can continue from.
        ManifestMismatchError: it is not what it was when it was committed.
    """
    began = time.monotonic()
    check_job(port, target)
    manifest = exchange.from_coordinator(
        lambda: verified_manifest(port, store, target, saver=DCP_SAVER)
    )
    if port.settings.verify == CHECKSUMS:
        share = manifest.entries[port.rank :: port.world_size]
        exchange.share(lambda: verify_checksums(store, manifest.generation_id, share))
    _load(port, store, exchange, parts, manifest)
    port.report_restored(
        generation_id=target.generation_id,
        manifest_digest=target.manifest_digest,
        step=target.step,
        restore_ms=round((time.monotonic() - began) * 1_000),
        verification=port.settings.verify,
    )


def _load(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, manifest: Manifest
) -> None:
    reader = GenerationReader(store, manifest, rank=port.rank)
    metadata = exchange.from_coordinator(reader.read_metadata)
    targets = parts.targets(metadata, rank=port.rank)
    unwanted = exchange.share(lambda: check_targets(targets, metadata))
    if nobodys := sorted(set.intersection(*unwanted)):
        raise RestoreRefusedError(
            f"the checkpoint has what no rank wants: {some_of(nobodys)}; give "
            "session.checkpoint(...) what it was given then"
        )

    def fill() -> None:
        load(reader, metadata, targets)
        parts.apply(targets, rank=port.rank, step=manifest.step)

    exchange.share(fill)
