"""``drainfsm export``: a job's log as a file that ``replay --file`` reads back, or as traces."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from drainfsm.cli.logs import (
    WHERE,
    add_log_options,
    all_jobs,
    instant,
    read_history,
    reader_of,
    report_damage,
)
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import load_settings
from drainfsm.core.codec import decode_as_stored
from drainfsm.errors import ConfigError
from drainfsm.store import open_store
from drainfsm.views.archive import archive
from drainfsm.views.history import History, export_lines

USAGE = """export (--job NAME | --file PATH) [--epoch N] [--nats URL]
                       [--store URL_OR_PATH]
                       (-o FILE [--format records|cloudevents|parquet] | --otlp)
       drainfsm export --archive URL_OR_PATH [--older-than SPAN] [--nats URL] [--format …]
       drainfsm export --otlp --follow [--job NAME] [--nats URL] [--file PATH] [--since WHEN]"""

EPILOG = (
    WHERE
    + """

Only records (the default) can be read back. cloudevents: a CloudEvent an event, as JSON lines;
parquet: a row an event, with the state after it.

--otlp sends every drain that is over as a trace, a span a phase, to where OTEL_EXPORTER_OTLP_…
says (by default http://localhost:4318). What is sent twice is the same trace.

--archive puts every attempt of every job of --nats, --state-dir or --file whose newest record is
older than --older-than (1d; 30d, 12h) into an object store or a directory, as JOB/EPOCH.jsonl or
.parquet: once each, so it may be called daily. Exit code 1: more has come of an attempt that was
there, which is left as it was (name another place for those).

--follow goes on until it is ended, and sends each drain once it is over: of --job, else of every
job of --nats or of --state-dir. What no collector takes is tried again; a server that is away is
waited for. It begins with the drains that are in the log, or with --since (7d, 2026-11-01) with
those that were over later."""
)

SUFFIXES = {"records": "jsonl", "cloudevents": "cloudevents.jsonl", "parquet": "parquet"}
FORMATS = ("records", "cloudevents", "parquet")


def parser() -> Parser:
    about = "Write a job's records into a file, one JSON object a line, as they stand in the log."
    made = Parser("export", about, usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store")
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", metavar="FILE", type=Path, help="the file; - for stdout")
    where.add_argument("--otlp", action="store_true", help="send drains as OpenTelemetry traces")
    where.add_argument("--archive", metavar="URL_OR_PATH", help="every job, an object an attempt")
    made.add_argument("--older-than", metavar="SPAN", default="1d", help="with --archive")
    made.add_argument("--follow", action="store_true", help="with --otlp: and what comes")
    made.add_argument("--since", metavar="WHEN", help="with --follow: drains that ended later")
    made.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of the file")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    if arguments.follow:
        return _follow(arguments)
    if arguments.archive is not None:
        return _archive(arguments)
    if arguments.since is not None:
        raise ConfigError("--since: only with --otlp --follow")
    history = read_history(arguments, each=decode_as_stored)
    if arguments.epoch is not None:
        logs = tuple(log for log in history.logs if log.epoch == arguments.epoch)
        if not logs:
            raise ConfigError(f"--epoch {arguments.epoch}: no such attempt in this log")
        history = History(logs=logs, damage=history.damage)
    if arguments.otlp:
        _send(history)
        return report_damage(history)
    data = _encoded(history, arguments.format)
    if str(arguments.output) == "-":
        sys.stdout.buffer.write(data)
    else:
        try:
            arguments.output.write_bytes(data)
        except OSError as error:
            raise ConfigError(f"--output {arguments.output}: {error.strerror}") from error
        print(f"{len(history.records)} records in {arguments.output}", file=sys.stderr)
    return report_damage(history)


def _archive(arguments: argparse.Namespace) -> int:
    if arguments.job is not None or arguments.epoch is not None or arguments.store is not None:
        raise ConfigError("--archive: every job, so neither --job, --epoch nor --store")
    store = open_store(arguments.archive)
    store.create(parents=True)
    form = arguments.format
    found = archive(
        all_jobs(arguments, each=decode_as_stored),
        store,
        encode=lambda history: _encoded(history, form),
        suffix=SUFFIXES[form],
        before_unix_ms=instant(arguments.older_than, option="--older-than"),
    )
    print(f"{len(found.added)} attempts added, {found.present_count} were there", file=sys.stderr)
    for name in found.changed:
        print(f"drainfsm: {name}: more of it has come since it was archived", file=sys.stderr)
    damaged = report_damage(History(logs=(), damage=found.damage))
    return int(bool(damaged or found.changed))


def _encoded(history: History, form: str) -> bytes:
    if form == "records":
        return export_lines(history)
    from drainfsm.views.formats import cloud_events, parquet

    if form == "cloudevents":
        return b"".join(cloud_events(history))
    try:
        return parquet(history)
    except ImportError as error:
        raise ConfigError(
            "--format parquet: pyarrow is missing: install it with "
            "`pip install 'drainfsm[parquet]'`"
        ) from error


MISSING = "--otlp: OpenTelemetry is missing: install it with `pip install 'drainfsm[metrics]'`"


def _follow(arguments: argparse.Namespace) -> int:
    if not arguments.otlp or arguments.epoch is not None:
        raise ConfigError("--follow: only with --otlp, and without --epoch")
    import asyncio

    try:
        from drainfsm.views.trace_follower import TraceFollower
    except ImportError as error:
        raise ConfigError(MISSING) from error
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    follower = TraceFollower(
        reader_of(
            settings,
            arguments.file,
            job=None if settings.given("job") is None else settings.job,
        ),
        since_unix_ms=0 if arguments.since is None else instant(arguments.since),
        say=lambda text: print(f"drainfsm: {text}", file=sys.stderr, flush=True),
    )
    asyncio.run(follower.run())
    return 0


def _send(history: History) -> None:
    try:
        from drainfsm.views.traces import send
    except ImportError as error:
        raise ConfigError(MISSING) from error
    from drainfsm.views.postmortem import postmortems

    found = postmortems(history.logs)
    print(f"{send(found)} spans of {len(found)} drains sent", file=sys.stderr)
