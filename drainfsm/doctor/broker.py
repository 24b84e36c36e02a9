"""The NATS server of the log. It may be away: then journals are the record."""

from __future__ import annotations

from collections.abc import Iterator

from drainfsm.doctor.findings import Finding, Setup, note, right, warning
from drainfsm.errors import BrokerError
from drainfsm.log.jetstream import connect
from drainfsm.log.server import NatsServer, public

CONNECT_S = 5.0


async def check_broker(setup: Setup) -> list[Finding]:
    if setup.nats is None:
        return [note("log", "no --nats: node 0 starts a server of its own, on its disk alone")]
    return list(await _tried(setup.nats))


async def _tried(server: NatsServer) -> Iterator[Finding]:
    where = public(server)
    try:
        connection = await connect(server, timeout_s=CONNECT_S)
    except BrokerError as problem:
        return iter([_away(where, problem)])
    try:
        warnings = await connection.stream_warnings()
    except BrokerError as problem:
        return iter([_away(where, problem)])
    finally:
        await connection.close()
    if not warnings:
        return iter([right("log", f"the stream at {where} is an append-only log that lasts")])
    return iter(
        warning(
            "log",
            text,
            why="the shared history would have a gap; journals and store keep theirs",
            fix="drainfsm stream check --nats URL --monitor URL   # docs/nats.md, What may be lost",
        )
        for text in warnings
    )


def _away(where: str, problem: BrokerError) -> Finding:
    return warning(
        "log",
        f"{where}: {problem}",
        why="dashboards and postmortems elsewhere would see nothing; drains do not need it",
        fix="drainfsm auth init -o keys --job NAME   # what the user needs; docs/nats.md",
    )
