"""Whether a committed generation is one that this job can continue from. No torch."""

from __future__ import annotations

from drainfsm.checkpoint.port import RankPort
from drainfsm.core.manifest import Manifest
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import ConfigError, RestoreRefusedError
from drainfsm.store.base import ObjectStore
from drainfsm.store.generations import read_manifest, verify_generation

SIZES = "sizes"
CHECKSUMS = "checksums"


def check_job(port: RankPort, target: RestoreTarget) -> None:
    """What every rank can tell by itself, and all alike.

    Raises:
        RestoreRefusedError: the job has another size or layout than the one that saved.
    """
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


def verified_manifest(
    port: RankPort, store: ObjectStore, target: RestoreTarget, *, saver: str
) -> Manifest:
    """The manifest, after the fast gate: every file is there, with its size, and none besides.

    Raises:
        RestoreRefusedError: the generation is of another job, step, size, layout or saver.
        ManifestMismatchError: it is not what it was when it was committed.
    """
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
    verify_generation(store, manifest, checksums=False)
    return manifest
