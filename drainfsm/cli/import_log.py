"""``drainfsm import``: what had not reached the stream, brought there later."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from drainfsm.cli.logs import report_damage
from drainfsm.cli.options import NATS_KEYS, Parser, add_options
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.codec import decode_as_stored
from drainfsm.errors import ConfigError
from drainfsm.views.history import History, read_file, read_kept

if TYPE_CHECKING:
    from drainfsm.log.merge import Merged
    from drainfsm.log.server import NatsServer

USAGE = """import --job NAME --nats URL (--store URL_OR_PATH | --file PATH) [--json]"""

EPILOG = """\
An attempt that ends while the NATS server is away puts its journal beside the checkpoints, under
log/ in the store; import brings that, or an exported file or a journal, into the stream. Records
that are there are not stored again, so that it may be repeated, and an attempt on the same machine
may ship its journals before or after.

Exit code 1: records are missing in between, are unreadable, are refused, or belong where the stream
holds those of another writer."""

CONNECT_S = 10.0


def parser() -> Parser:
    made = Parser("import", "Bring kept records into the stream.", usage=USAGE, epilog=EPILOG)
    add_options(made, ("job", "store", *NATS_KEYS))
    made.add_argument("--file", metavar="PATH", type=Path, help="exported file, or a journal")
    made.add_argument("--json", action="store_true", help="JSON lines, one for each attempt")
    return made


def main(argv: Sequence[str]) -> int:
    import asyncio

    from drainfsm.log.server import agents_inbox

    arguments = parser().parse(argv)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    server = settings.nats_with(agents_inbox(settings.job))
    if server is None:
        raise ConfigError("import: name the NATS server with --nats")
    history = _history(settings, arguments)
    merged = asyncio.run(_merged(server, history, job_id=settings.job))
    for one in merged:
        if arguments.json:
            sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
        else:
            print(_text(one))
    damaged = report_damage(history)
    wrong = any(one.conflict or one.refused or one.missing is not None for one in merged)
    return int(bool(damaged) or wrong)


def _history(settings: Settings, arguments: argparse.Namespace) -> History:
    if arguments.file is None:
        history = read_kept(store_of(settings))
    else:
        history = read_file(arguments.file, each=decode_as_stored)
    if not any(log.job_id == settings.job for log in history.logs) and not history.damage:
        where = "the store keeps" if arguments.file is None else f"{arguments.file} holds"
        raise ConfigError(f"{where} no records of job {settings.job}: nothing to import")
    return history


async def _merged(server: NatsServer, history: History, *, job_id: str) -> list[Merged]:
    from drainfsm.log.jetstream import connect
    from drainfsm.log.merge import merge

    connection = await connect(server, timeout_s=CONNECT_S)
    try:
        await connection.ensure_stream()
        return await merge(connection, history.records, job_id=job_id)
    finally:
        await connection.close()


def _text(one: Merged) -> str:
    told = f"attempt {one.epoch}: {one.added_count} records added, {one.present_count} were there"
    if one.conflict:
        return f"{told}; NOT imported, another writer's log is there: {one.conflict}"
    if one.refused:
        return f"{told}; the next was refused, and those behind it wait for it: {one.refused}"
    if one.missing is not None:
        return f"{told}; record {one.missing} is missing, and those behind it wait for it"
    return told
