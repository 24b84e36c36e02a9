"""``drainfsm gc``: removes generations that no restart can ask for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.options import Parser, add_options
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import store_of
from drainfsm.errors import ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.store import gc
from drainfsm.store.retention import Retention, plan

USAGE = """gc --store URL_OR_PATH --job NAME [--keep-last N] [--keep-every K] [--delete] [--json]"""

EPILOG = """\
A dry run, unless --delete is given. Uncommitted generations of attempts that a newer claim has
fenced may always go. Committed ones go only under --keep-last or --keep-every, and never what a
restart can ask for: the newest commit, what the last requeue record names, and the newest commits
of an attempt that has not left its record yet."""


def parser() -> Parser:
    made = Parser("gc", "Remove what no restart can ask for.", usage=USAGE, epilog=EPILOG)
    add_options(made, ("job", "store"))
    made.add_argument("--keep-last", metavar="N", type=_count, help="committed generations to keep")
    made.add_argument("--keep-every", metavar="K", type=_count, help="and every K-th commit")
    made.add_argument("--delete", action="store_true", help="really remove them")
    made.add_argument("--json", action="store_true", help="JSON lines, one for each generation")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    job, store = settings.job, store_of(settings)
    holding = gc.survey(store, job_id=job)
    if not holding.epoch:
        raise ConfigError(f"--store {store.url}: job {job} never claimed it; nothing to clean up")
    retention = Retention(keep_last=arguments.keep_last, keep_every=arguments.keep_every)
    verdicts = plan(holding, retention)
    if not arguments.delete:
        return _tell((gc.Removed(verdict=verdict) for verdict in verdicts), arguments)
    kept = [gc.Removed(verdict=verdict) for verdict in verdicts if not verdict.removes]
    return _tell([*kept, *gc.remove(store, verdicts, now_unix_ms=Clock().now_unix_ms)], arguments)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def _tell(found: Iterable[gc.Removed], arguments: argparse.Namespace) -> int:
    removed_bytes = removed_count = failed_count = 0
    for one in found:
        verdict = one.verdict
        if verdict.removes and not one.error:
            removed_bytes += verdict.size_bytes
            removed_count += 1
        failed_count += bool(one.error)
        if arguments.json:
            sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
            continue
        what = ("removed" if arguments.delete else "would go") if verdict.removes else "kept"
        what, why = ("FAILED", one.error) if one.error else (what, verdict.reason)
        print(f"{what:9}{verdict.generation_id:32}{verdict.size_bytes:>16,} bytes  {why}")
    done = "removed" if arguments.delete else "would be removed (a dry run; --delete removes them)"
    sys.stdout.flush()
    print(f"{removed_count} generation(s), {removed_bytes:,} bytes {done}", file=sys.stderr)
    return 1 if failed_count else 0
