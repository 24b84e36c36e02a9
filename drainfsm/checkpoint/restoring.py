"""Restoring exactly one generation, on all ranks or on none."""

from __future__ import annotations

import time

from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.parts import Parts
from drainfsm.checkpoint.port import RankPort
from drainfsm.checkpoint.reader import GenerationReader, check_targets, load, some_of
from drainfsm.core.manifest import Manifest
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import ConfigError, RestoreRefusedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.generations import read_manifest, verify_checksums, verify_generation

SAVER = "torch.distributed.checkpoint"
SIZES = "sizes"
CHECKSUMS = "checksums"


def restore(
    port: RankPort, store: ObjectStore, exchange: Exchange, parts: Parts, target: RestoreTarget
) -> None:
    """Collective. What is refused on one rank is refused on all, with the same error.

    Raises:
        RestoreRefusedError: the generation is not one that this job can continue from.
        ManifestMismatchError: it is not what it was when it was committed.
    """
    began = time.monotonic()
    _check_job(port, target)
    manifest = exchange.from_coordinator(lambda: _verified_manifest(port, store, target))
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


def _check_job(port: RankPort, target: RestoreTarget) -> None:
    """What every rank can tell by itself, and all alike."""
    if port.settings.verify not in (SIZES, CHECKSUMS):
        raise ConfigError(f"verify {port.settings.verify!r}: choose {SIZES} or {CHECKSUMS}")
    if target.world_size != port.world_size:
        raise RestoreRefusedError(
            f"generation {target.generation_id} was saved by {target.world_size} ranks, and this "
            f"job has {port.world_size}: start it with {target.world_size}"
        )
    if target.layout != port.settings.layout:
        raise RestoreRefusedError(
            f"generation {target.generation_id} was saved with layout {target.layout}, and this "
            f"job declares {port.settings.layout}"
        )


def _verified_manifest(port: RankPort, store: ObjectStore, target: RestoreTarget) -> Manifest:
    """On the coordinator: the manifest, after the fast gate."""
    manifest = read_manifest(
        store, generation_id=target.generation_id, digest=target.manifest_digest
    )
    for what, there, here in (
        ("job", manifest.job_id, port.job_id),
        ("step", manifest.step, target.step),
        ("world size", manifest.world_size, target.world_size),
        ("layout", manifest.layout, target.layout),
        ("saver", manifest.saver, SAVER),
    ):
        if there != here:
            raise RestoreRefusedError(
                f"the manifest of {target.generation_id} says {what} {there}, not {here}"
            )
    verify_generation(store, manifest, checksums=False)
    return manifest


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
