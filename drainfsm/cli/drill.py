"""``drainfsm drill``: finds out in time whether a restart would work."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from drainfsm.cli import drill_scenarios
from drainfsm.cli.drill_scenarios import ALL
from drainfsm.cli.interruption import cleaning_up, run_cleaning_up
from drainfsm.cli.options import ALLOWANCES, Parser, add_options, positive_number, split_command
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.events import CheckpointDrilled
from drainfsm.core.manifest import Commit, Manifest
from drainfsm.core.orders import target_of
from drainfsm.core.text import printable
from drainfsm.core.words import DrillOutcome, Verification
from drainfsm.drills.scenarios import SCENARIOS
from drainfsm.errors import (
    ConfigError,
    GenerationPrunedError,
    ManifestMismatchError,
    OtherJobsStoreError,
    RestoreRefusedError,
)
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.store import CommitLog, ObjectStore
from drainfsm.store.drills import record_drill
from drainfsm.store.generations import read_manifest, verify_generation

COMMAND_S_MAX = 3_600.0

USAGE = """drill SCENARIO|all [--dir DIR] [--html FILE] [--junit FILE] [--json]
                    [--store URL_OR_PATH --job NAME] [-- CMD…]
       drainfsm drill restore --store URL_OR_PATH --job NAME [--generation ID] [--checksums-only]
                    [--timeout SECONDS] [--json] [-- CMD…]"""

EPILOG = """\
SCENARIO: {scenarios}.
Starts the command (the demo's job where there is none) under an agent, with a store, a log and a
state directory of its own, waits for its first periodic checkpoint, does to it what the name says,
starts a replacement, and judges: nothing new was scheduled onto the drained node, one decision on
the save, every committed checkpoint complete, no process left after the deadline, a valid step
after. Exit code 1: a scenario failed. The command must save by drainfsm, and train until it is told
to leave. Needs a minute or two each. With --store on the command line, the verdicts are put on
record in that store for `drainfsm report`; nothing else of the job is touched.

restore: read a committed generation (the newest) back as a new process would: the manifest, every
byte against its checksum, and, where torch is installed, every tensor and object. The job is not
touched, and may run. The outcome is recorded in the store under drills/; exit code 1 if it failed,
2 if there was nothing to drill (another job's store, an unknown generation) or to drill it with.

With a command: the job's own, all ranks on this machine. It is started as `drainfsm run` starts
it, restores that generation with every byte checked, and is ended once all ranks have done so,
before their first step is over. So the job's own code is drilled, and nothing is saved.

Loading unpickles what the job saved: drill the stores of jobs that you trust.""".format(
    scenarios=", ".join(SCENARIOS)
)
RESTORE = "restore"
TIMEOUT_S = 300.0


def parser() -> Parser:
    made = Parser("drill", "Rehearse drains and restores.", usage=USAGE, epilog=EPILOG)
    made.add_argument(
        "what", metavar="WHAT", choices=(RESTORE, ALL, *SCENARIOS), help="what to rehearse"
    )
    add_options(
        made, ("job", "store", "grace", "every_steps", *(option.key for option in ALLOWANCES))
    )
    made.add_argument("--generation", metavar="ID", help="instead of the newest committed one")
    made.add_argument("--checksums-only", action="store_true", help="load nothing into memory")
    made.add_argument(
        "--timeout",
        type=positive_number,
        metavar="SECONDS",
        help="a drill fails if a command has not restored by then, or a scenario waits longer for "
        f"anything (default: {COMMAND_S_MAX:g}, {TIMEOUT_S:g})",
    )
    made.add_argument("--dir", metavar="DIR", help="of scenarios (default: a temporary one)")
    made.add_argument("--html", metavar="FILE", type=Path, help="of scenarios: a page")
    made.add_argument("--junit", metavar="FILE", type=Path, help="of scenarios: for a CI")
    made.add_argument("--json", action="store_true", help="one JSON object a rehearsal")
    return made


def main(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    arguments = parser().parse(options)
    if arguments.what == RESTORE:
        return _restore(arguments, command)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    arguments.timeout = arguments.timeout or TIMEOUT_S
    with cleaning_up():
        return drill_scenarios.main(arguments, settings, command)


def _restore(arguments: argparse.Namespace, command: Sequence[str]) -> int:
    if command and arguments.checksums_only:
        raise ConfigError("--checksums-only: a command loads; leave out one of the two")
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    job, store = settings.job, store_of(settings)
    commit = _committed(store, job_id=job, generation_id=arguments.generation)
    if not command and not arguments.checksums_only and find_spec("torch") is not None:
        import_module("drainfsm.checkpoint.drill")  # before the restore is timed
    began = time.monotonic()
    if command:
        config = settings.run_config(command)
        drilled = _tried(
            lambda: rehearse(store, commit, config, timeout_s=arguments.timeout or COMMAND_S_MAX)
        )
    else:
        drilled = drill(store, commit, loads=not arguments.checksums_only)
    event = CheckpointDrilled(
        generation_id=commit.generation_id,
        manifest_digest=commit.manifest_digest,
        step=commit.step,
        verification=drilled.verification,
        drill_ms=round((time.monotonic() - began) * 1_000),
        outcome=drilled.outcome,
        detail=drilled.detail,
    )
    name = record_drill(store, event, job_id=job, now_unix_ms=Clock().now_unix_ms())
    _tell(event, commit, name, as_json=arguments.json)
    return 0 if event.outcome == DrillOutcome.VERIFIED else 1


class Drilled(NamedTuple):
    verification: Verification
    """How far it was verified, or the check that failed."""

    detail: str
    outcome: DrillOutcome = DrillOutcome.VERIFIED


def drill(store: ObjectStore, commit: Commit, *, loads: bool) -> Drilled:
    """Raises: GenerationPrunedError."""
    checked = _tried(lambda: _check(store, commit))
    if checked.outcome == DrillOutcome.FAILED:
        return checked
    if not loads:
        return Drilled(Verification.CHECKSUMS, "not loaded: --checksums-only")
    return _tried(lambda: _load(store, _manifest(store, commit)), verification=Verification.LOADED)


def _tried(
    what: Callable[[], Drilled], *, verification: Verification = Verification.CHECKSUMS
) -> Drilled:
    """A generation that a restart could not use is an outcome, not an error."""
    try:
        return what()
    except GenerationPrunedError:
        raise
    except (ManifestMismatchError, RestoreRefusedError) as error:
        return Drilled(verification, str(error), DrillOutcome.FAILED)


def _manifest(store: ObjectStore, commit: Commit) -> Manifest:
    return read_manifest(store, generation_id=commit.generation_id, digest=commit.manifest_digest)


def _check(store: ObjectStore, commit: Commit) -> Drilled:
    manifest = _manifest(store, commit)
    for what, there, here in (
        ("job", manifest.job_id, commit.job_id),
        ("step", manifest.step, commit.step),
        ("world size", manifest.world_size, commit.world_size),
    ):
        if there != here:
            raise ManifestMismatchError(f"the manifest says {what} {there}, not {here}")
    verify_generation(store, manifest, checksums=True)
    return Drilled(Verification.CHECKSUMS, "")


def rehearse(store: ObjectStore, commit: Commit, config: RunConfig, *, timeout_s: float) -> Drilled:
    """The same by the job's own command.

    Raises:
        ConfigError: the command cannot be started.
        ManifestMismatchError: the manifest is damaged.
    """
    from drainfsm.runtime.agent.rehearsal import Rehearsal, Rehearsed

    target = target_of(commit, layout=_manifest(store, commit).layout)

    async def run() -> Rehearsed:
        rehearsal = Rehearsal(config, target, epoch=commit.epoch, store_url=store.url)
        return await rehearsal.run(timeout_s=timeout_s)

    done = run_cleaning_up(run())
    return Drilled(
        Verification.RESTORED,
        done.detail,
        DrillOutcome.VERIFIED if done.restored else DrillOutcome.FAILED,
    )


def _load(store: ObjectStore, manifest: Manifest) -> Drilled:
    if find_spec("torch") is None:
        return Drilled(Verification.CHECKSUMS, "not loaded: torch is not installed here")
    from drainfsm.checkpoint.drill import can_load, load_generation

    if not can_load(manifest):
        return Drilled(Verification.CHECKSUMS, f"not loaded: written by {manifest.saver}")
    loaded = load_generation(store, manifest)
    detail = (
        f"{loaded.tensor_count} tensors of {loaded.tensor_bytes:,} bytes, "
        f"{loaded.object_count} objects"
    )
    if loaded.not_unpickled:
        detail += f"; not unpickled, for want of the job's code: {', '.join(loaded.not_unpickled)}"
    return Drilled(Verification.LOADED, detail)


def _committed(store: ObjectStore, *, job_id: str, generation_id: str | None) -> Commit:
    """Raises: ConfigError: there is no such commit."""
    log = CommitLog(store, job_id=job_id)
    try:
        newest = log.head().commit
    except OtherJobsStoreError as error:
        raise ConfigError(f"--job {job_id}: {error}") from error
    if newest is None:
        raise ConfigError(f"--store {store.url}: job {job_id} has committed nothing")
    if generation_id is None:
        return newest
    found = log.find(generation_id)
    if found is None:
        raise ConfigError(f"--generation {generation_id}: no commit names it")
    return found[1]


def _tell(event: CheckpointDrilled, commit: Commit, name: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
        return
    seconds = f"{event.drill_ms / 1_000:.3f} s"
    verified = event.outcome == DrillOutcome.VERIFIED
    print(
        f"{event.outcome}: {event.generation_id} (step {event.step}), {commit.file_count} files, "
        f"{commit.total_bytes:,} bytes, "
        + (f"{event.verification} in {seconds}" if verified else f"after {seconds}")
    )
    print(f"  {printable(event.detail, chars_max=4_000)}")
    print(f"  recorded as {name}")
