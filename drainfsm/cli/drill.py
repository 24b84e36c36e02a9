"""``drainfsm drill``: finds out in time whether what a restart trusts can be trusted."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from drainfsm.cli.options import Parser, add_options
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.manifest import Commit, Manifest
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import GenerationPrunedError, ManifestMismatchError, RestoreRefusedError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.store import CommitLog, ObjectStore
from drainfsm.store.drills import FAILED, VERIFIED, record_drill
from drainfsm.store.generations import read_manifest, verify_generation

CHECKSUMS, LOADED, RESTORED = "checksums", "loaded", "restored"
COMMAND_S_MAX = 3_600.0

USAGE = """drill restore --store URL_OR_PATH --job NAME [--generation ID] [--checksums-only]
                    [--timeout SECONDS] [--json] [-- CMD…]"""

EPILOG = """\
restore: read a committed generation (the newest) back as a fresh worker would: the manifest, every
byte against its checksum, and, where torch is installed, every tensor and object. The job is not
touched, and may run. The outcome is recorded in the store under drills/; exit code 1 if it failed.

With a command: that of the job, all ranks on this machine. It is started as `drainfsm run` starts
it, told to restore that generation with every byte checked, and ended once all ranks have, before
their first step is over. So it is the job's own code that is drilled, and nothing is saved.

Loading unpickles what the job saved: drill the stores of jobs that you trust."""


def parser() -> Parser:
    made = Parser("drill", "Rehearse a restore.", usage=USAGE, epilog=EPILOG)
    made.add_argument("what", metavar="restore", choices=("restore",), help="what to rehearse")
    add_options(made, ("job", "store"))
    made.add_argument("--generation", metavar="ID", help="instead of the newest committed one")
    made.add_argument("--checksums-only", action="store_true", help="load nothing into memory")
    made.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        default=COMMAND_S_MAX,
        help="a command that has not restored by then has failed (default: %(default)g)",
    )
    made.add_argument("--json", action="store_true", help="print the event as JSON")
    return made


def main(argv: Sequence[str]) -> int:
    options, command = list(argv), []
    if "--" in options:
        at = options.index("--")
        options, command = options[:at], options[at + 1 :]
    arguments = parser().parse(options)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    job, store = settings.job, store_of(settings)
    commit = _committed(store, job_id=job, generation_id=arguments.generation)
    began = time.monotonic()
    verification, outcome, detail = CHECKSUMS, VERIFIED, ""
    try:
        if command:
            config = settings.run_config(command)
            verification, outcome, detail = rehearse(
                store, commit, config, timeout_s=arguments.timeout
            )
        else:
            verification, detail = drill(store, commit, loads=not arguments.checksums_only)
    except GenerationPrunedError:
        raise
    except (ManifestMismatchError, RestoreRefusedError) as error:
        outcome, detail = FAILED, str(error)
    event = CheckpointDrilled(
        generation_id=commit.generation_id,
        manifest_digest=commit.manifest_digest,
        step=commit.step,
        verification=verification,
        drill_ms=round((time.monotonic() - began) * 1_000),
        outcome=outcome,
        detail=detail,
    )
    name = record_drill(store, event, job_id=job, now_unix_ms=Clock().now_unix_ms())
    _tell(event, commit, name, as_json=arguments.json)
    return 0 if outcome == VERIFIED else 1


def drill(store: ObjectStore, commit: Commit, *, loads: bool) -> tuple[str, str]:
    """How far it was verified, and what there is to say about it.

    Raises:
        ManifestMismatchError, RestoreRefusedError: a restart could not use it.
    """
    manifest = read_manifest(
        store, generation_id=commit.generation_id, digest=commit.manifest_digest
    )
    for what, there, here in (
        ("job", manifest.job_id, commit.job_id),
        ("step", manifest.step, commit.step),
        ("world size", manifest.world_size, commit.world_size),
    ):
        if there != here:
            raise ManifestMismatchError(f"the manifest says {what} {there}, not {here}")
    verify_generation(store, manifest, checksums=True)
    return _load(store, manifest) if loads else (CHECKSUMS, "not loaded: --checksums-only")


def rehearse(
    store: ObjectStore, commit: Commit, config: RunConfig, *, timeout_s: float
) -> tuple[str, str, str]:
    """The same by the job's own command, and the outcome."""
    from drainfsm.runtime.rehearsal import Rehearsal, Rehearsed

    manifest = read_manifest(
        store, generation_id=commit.generation_id, digest=commit.manifest_digest
    )
    target = RestoreTarget(
        generation_id=commit.generation_id,
        manifest_digest=commit.manifest_digest,
        step=commit.step,
        world_size=commit.world_size,
        layout=manifest.layout,
    )

    async def run() -> Rehearsed:
        rehearsal = Rehearsal(config, target, epoch=commit.epoch, store_url=store.url)
        return await rehearsal.run(timeout_s=timeout_s)

    done = asyncio.run(run())
    return RESTORED, VERIFIED if done.restored else FAILED, done.detail


def _load(store: ObjectStore, manifest: Manifest) -> tuple[str, str]:
    if find_spec("torch") is None:
        return CHECKSUMS, "not loaded: torch is not installed here"
    from drainfsm.checkpoint.drill import can_load, load_generation

    if not can_load(manifest):
        return CHECKSUMS, f"not loaded: written by {manifest.saver}"
    loaded = load_generation(store, manifest)
    told = (
        f"{loaded.tensor_count} tensors of {loaded.tensor_bytes:,} bytes, "
        f"{loaded.object_count} objects"
    )
    if loaded.not_unpickled:
        told += f"; not unpickled, for want of the job's code: {', '.join(loaded.not_unpickled)}"
    return LOADED, told


def _committed(store: ObjectStore, *, job_id: str, generation_id: str | None) -> Commit:
    log = CommitLog(store, job_id=job_id)
    if generation_id is None:
        commit = log.head().commit
        if commit is None:
            raise RestoreRefusedError(f"--store {store.url}: job {job_id} has committed nothing")
        return commit
    found = log.find(generation_id)
    if found is None:
        raise RestoreRefusedError(f"--generation {generation_id}: no commit names it")
    return found[1]


def _tell(event: CheckpointDrilled, commit: Commit, name: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        return
    print(
        f"{event.outcome}: {event.generation_id} (step {event.step}), {commit.file_count} files, "
        f"{commit.total_bytes:,} bytes, {event.verification} in {event.drill_ms / 1_000:.3f} s"
    )
    print(f"  {event.detail}")
    print(f"  recorded as {name}")
