"""``drainfsm replay``: a drain, an attempt or a whole job, event by event."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from drainfsm.cli.logs import WHERE, add_log_options, read_history, replays, report_damage
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
    history = read_history(arguments)
    chosen = replays(arguments, history)
    if arguments.drain is not None:
        chosen = _only_drain(chosen, arguments.drain)
    if arguments.json:
        for replay in chosen:
            for line in replay.lines:
                sys.stdout.write(encode_line(line).decode())
            sys.stdout.write(encode_line(replay.final).decode())
    else:
        print("\n\n".join("\n".join(table(replay)) for replay in chosen))
    return report_damage(history)


def _only_drain(found: list[AttemptReplay], drain_id: str) -> list[AttemptReplay]:
    chosen = [select_drain(r, drain_id) for r in found if drain_id in r.final.drains]
    if not chosen:
        known = ", ".join(drain for replay in found for drain in replay.final.drains) or "none"
        raise ConfigError(f"--drain {drain_id}: no such drain; there are: {known}")
    return chosen
