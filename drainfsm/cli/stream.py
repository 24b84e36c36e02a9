"""``drainfsm stream init|check``: the stream of the log, made and looked at by an administrator."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from drainfsm.cli.options import NATS_KEYS, Parser, add_options
from drainfsm.cli.settings import load_settings
from drainfsm.errors import ConfigError

if TYPE_CHECKING:
    from drainfsm.log.administration import Findings
    from drainfsm.log.server import NatsServer

USAGE = """stream init|check --nats URL [--nats-creds FILE …] [--replicas N] [--max-bytes N]
                       [--max-age-days N] [--monitor URL …] [--json]"""

EPILOG = """\
init creates the stream DRAINFSM as an append-only log, so that agents need no right to do so; of
one that is there it changes nothing but the note of what its servers do. check says what the
stream is.

Only a server's monitoring port tells whether it syncs before it acknowledges: --monitor
http://HOST:8222, once for each server of the cluster. init leaves the answer in the stream's
metadata, where agents read it (`drainfsm run --require-durable-log`).

Exit code 1: it is not an append-only log; of check also: it may lose what it has acknowledged, or
its room is nearly used up."""

CONNECT_S = 10.0


def parser() -> Parser:
    made = Parser("stream", "Make or check the stream of the log.", usage=USAGE, epilog=EPILOG)
    made.add_argument("what", choices=("init", "check"))
    add_options(made, NATS_KEYS)
    made.add_argument(
        "--replicas", metavar="N", type=int, default=1, help="init: how many; check: at least"
    )
    made.add_argument(
        "--max-bytes", metavar="N", type=int, default=-1, help="init: limit of the stream"
    )
    made.add_argument(
        "--max-age-days",
        metavar="N",
        type=int,
        default=0,
        help="init: records go after so many days, at least 7; by default never",
    )
    made.add_argument(
        "--monitor",
        metavar="URL",
        action="append",
        default=[],
        help="monitoring port of a server; may be repeated",
    )
    made.add_argument("--json", action="store_true", help="one JSON object")
    return made


def main(argv: Sequence[str]) -> int:
    import asyncio

    from drainfsm.log.stream import AGE_DAYS_MIN

    arguments = parser().parse(argv)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    server = settings.nats
    if arguments.max_age_days and arguments.max_age_days < AGE_DAYS_MIN:
        raise ConfigError(f"--max-age-days: at least {AGE_DAYS_MIN}, or records go unarchived")
    if server is None:
        raise ConfigError("stream: name the NATS server with --nats")
    found = asyncio.run(_found(server, arguments))
    failed = bool(found.wrong) or (arguments.what == "check" and not found.good)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        return int(failed)
    print("created" if found.created else "is there")
    for name, value in _table(found):
        print(f"  {name:18}{value}")
    sys.stdout.flush()
    for problem in (found.wrong, *found.risks, *found.shortages):
        if problem:
            print(f"drainfsm: {problem}", file=sys.stderr)
    return int(failed)


async def _found(server: NatsServer, arguments: argparse.Namespace) -> Findings:
    from drainfsm.log.administration import check_stream, make_stream, sync_of_servers
    from drainfsm.log.jetstream import connect

    sync = sync_of_servers(arguments.monitor) if arguments.monitor else ""
    connection = await connect(server, timeout_s=CONNECT_S)
    try:
        if arguments.what == "check":
            return await check_stream(connection, replicas=arguments.replicas, sync=sync)
        return await make_stream(
            connection,
            replicas=arguments.replicas,
            max_bytes=arguments.max_bytes,
            max_age_days=arguments.max_age_days,
            sync=sync,
        )
    finally:
        await connection.close()


def _table(found: Findings) -> list[tuple[str, str]]:
    limit = "no limit" if found.max_bytes is None else f"{found.max_bytes:,}"
    return [
        ("replicas", str(found.replicas)),
        ("storage", found.storage),
        ("retention", f"{found.retention}, a full stream discards {found.discard}"),
        ("syncs", found.sync or "not known"),
        ("duplicates window", f"{found.duplicate_window_s:g} s"),
        ("age", f"up to {found.max_age_days:g} days" if found.max_age_days else "no limit"),
        ("records", f"{found.record_count:,}"),
        ("bytes", f"{found.used_bytes:,} of {limit}"),
    ]
