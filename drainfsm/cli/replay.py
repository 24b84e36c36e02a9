"""``drainfsm replay``: a drain, an attempt or a whole job, event by event."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from drainfsm.cli.logs import WHERE, add_log_options, read_attempts, report_damage
from drainfsm.cli.options import Parser
from drainfsm.errors import ConfigError
from drainfsm.views.replay import AttemptReplay, encode_line, select_drain
from drainfsm.views.table import table

USAGE = """replay (--job NAME | --file PATH) [--epoch N] [--drain ID] [--nats URL]
                       [--store URL_OR_PATH] [--json]"""

EPILOG = (
    WHERE
    + """

Events are shown in the order of the log, with the time to the drain's deadline and the state after
each. --json: one object an event, then one of kind final_state for each attempt."""
)


def parser() -> Parser:
    made = Parser("replay", "Read a log back, event by event.", usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store")
    made.add_argument("--drain", metavar="ID", help="only this drain: JOB/EPOCH/NUMBER")
    made.add_argument("--json", action="store_true", help="JSON lines")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    with read_attempts(arguments) as attempts:
        chosen = attempts.replays(arguments.epoch)
        if arguments.drain is not None:
            chosen = _only_drain(chosen, arguments.drain)
        first = True
        for replay in chosen:
            if arguments.json:
                for line in replay.lines:
                    sys.stdout.write(encode_line(line).decode())
                sys.stdout.write(encode_line(replay.final).decode())
            else:
                print("" if first else "\n", end="")
                print("\n".join(table(replay)))
            first = False
        return report_damage(attempts)


def _only_drain(found: Iterable[AttemptReplay], drain_id: str) -> Iterator[AttemptReplay]:
    known: list[str] = []
    chosen = False
    for replay in found:
        known += replay.final.drains
        if drain_id in replay.final.drains:
            chosen = True
            yield select_drain(replay, drain_id)
    if not chosen:
        there = ", ".join(known) or "none"
        raise ConfigError(f"--drain {drain_id}: no such drain; there are: {there}")
