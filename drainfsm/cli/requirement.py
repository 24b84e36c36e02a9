"""``drainfsm requirement``: what a replacement must have, and whether this machine has it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.checkpoint.memory import free_host_bytes
from drainfsm.cli.options import ALLOWANCES, Parser, add_options, positive_number
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.foreign import read_json
from drainfsm.core.manifest import Commit
from drainfsm.core.requirement import REQUIREMENT_VERSION, Requirement
from drainfsm.core.text import printable
from drainfsm.doctor.storage import write_bandwidth
from drainfsm.errors import ConfigError, DrainfsmError
from drainfsm.policy.plan import plan
from drainfsm.policy.requirement import Match, Offer, compare, requirement_of
from drainfsm.runtime.coordinator.devices import accelerators
from drainfsm.store import CommitLog, ObjectStore, PosixStore, open_store
from drainfsm.store.drills import read_drills
from drainfsm.store.requeues import read_requeue

USAGE = """requirement --job NAME --store STORE [--json]
       drainfsm requirement --check [--requirement FILE | --job NAME --store STORE]
                            [--window SECONDS] [--topology TEXT] [--json]"""

EPILOG = """\
Prints what a replacement of the job must have, as JSON (specs/schemas/requirement.schema.json):
accelerators, topology, layout, memory to stage in, store and bandwidth, restore time, window. From
the requeue record and the newest checkpoint in the store; the restore time is the longest of what
attempts and `drainfsm drill restore` have measured.

--check compares one node, this one, with it: counts accelerators, looks at free memory, writes a
probe to the store and removes it. --requirement FILE: as printed elsewhere. What is not known on
one side is not compared. Exit code 1: it does not fit."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--check --json`` prints."""

    fits: bool
    matches: tuple[Match, ...]


def parser() -> Parser:
    made = Parser("requirement", "Say what a replacement must have.", usage=USAGE, epilog=EPILOG)
    add_options(made, ("job", "store", "topology", *(option.key for option in ALLOWANCES)))
    made.add_argument("--check", action="store_true", help="compare this machine")
    made.add_argument("--requirement", metavar="FILE", type=Path, help="to compare with")
    made.add_argument(
        "--window", metavar="SECONDS", type=positive_number, help="that the candidate gives"
    )
    made.add_argument("--json", action="store_true", help="of --check: one JSON object")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    if arguments.requirement is not None and not arguments.check:
        raise ConfigError("--requirement goes with --check")
    needed = (
        _of_store(settings) if arguments.requirement is None else _of_file(arguments.requirement)
    )
    if not arguments.check:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(needed), indent=1) + b"\n")
        return 0
    matches = tuple(compare(needed, _offer(needed, arguments)))
    fits = all(match.fits is not False for match in matches)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(Checked(fits=fits, matches=matches)) + b"\n")
    else:
        marks = {True: "fits", False: "DOES NOT FIT", None: "not compared"}
        for one in matches:
            needs, has = printable(one.needed), printable(one.offered)
            print(f"{marks[one.fits]:14}{one.what}: needs {needs}, has {has}")
    return 0 if fits else 1


def _of_file(path: Path) -> Requirement:
    """Raises: ConfigError: it holds no requirement of a version known here."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--requirement {path}: {error.strerror}") from error
    found = read_json(data, Requirement, lambda why: ConfigError(f"--requirement {path}: {why}"))
    if found.format_version > REQUIREMENT_VERSION:
        raise ConfigError(
            f"--requirement {path}: format version {found.format_version}; this drainfsm reads up "
            f"to {REQUIREMENT_VERSION}: update it"
        )
    for name, value in msgspec.structs.asdict(found).items():
        if isinstance(value, int) and value < 0:
            raise ConfigError(f"--requirement {path}: {name} is {value}")
    return found


def _of_store(settings: Settings) -> Requirement:
    """Raises: ConfigError: no attempt has left anything there."""
    store, job = store_of(settings), settings.job
    head = CommitLog(store, job_id=job).head()
    record = next(
        (
            found
            for epoch in range(head.epoch, 0, -1)
            if (found := read_requeue(store, epoch=epoch))
        ),
        None,
    )
    if record is None:
        raise ConfigError(f"--job {job}: no attempt has left a requeue record in {store.url}")
    drills = [drill for _, drill in read_drills(store, job_id=job)]
    return requirement_of(
        record,
        head.commit,
        drills,
        store_url=store.url,
        grace_ms=_window_ms(record.capacity.store_bytes_per_s, head.commit, settings),
    )


def _window_ms(bytes_per_s: int, commit: Commit | None, settings: Settings) -> int:
    """That a save needs, at the bandwidth that was measured; 0: nothing is committed."""
    if commit is None:
        return 0
    made = plan(
        save_bytes=commit.total_bytes,
        allowances=settings.allowances,
        bytes_per_s=bytes_per_s or None,
    )
    return made.needed_ms


def _offer(needed: Requirement, arguments: argparse.Namespace) -> Offer:
    reached, rate = _try_store(open_store(needed.store))
    window = arguments.window
    return Offer(
        accelerator_count=accelerators(),
        topology=arguments.topology,
        memory_bytes=free_host_bytes(),
        store_reached=reached,
        store_bytes_per_s=rate,
        window_ms=None if window is None else round(window * 1_000),
    )


def _try_store(store: ObjectStore) -> tuple[bool, int | None]:
    if isinstance(store, PosixStore) and not store.root.is_dir():
        return False, None
    try:
        return True, write_bandwidth(store)
    except DrainfsmError:
        return False, None
