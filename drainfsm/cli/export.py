"""``drainfsm export``: a job's log as a file that ``replay --file`` reads back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from drainfsm.cli.logs import WHERE, add_log_options, read_history, report_damage
from drainfsm.cli.options import Parser
from drainfsm.errors import ConfigError
from drainfsm.views.history import History, export_lines

USAGE = """export (--job NAME | --file PATH) [--epoch N] [--nats URL] -o FILE"""


def parser() -> Parser:
    about = "Write a job's records into a file, one JSON object a line, as they stand in the log."
    made = Parser("export", about, usage=USAGE, epilog=WHERE)
    add_log_options(made)
    made.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="the file; - for stdout"
    )
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    history = read_history(arguments)
    if arguments.epoch is not None:
        logs = tuple(log for log in history.logs if log.epoch == arguments.epoch)
        if not logs:
            raise ConfigError(f"--epoch {arguments.epoch}: no such attempt in this log")
        history = History(logs=logs, damage=history.damage)
    data = export_lines(history)
    if str(arguments.output) == "-":
        sys.stdout.buffer.write(data)
    else:
        try:
            arguments.output.write_bytes(data)
        except OSError as error:
            raise ConfigError(f"--output {arguments.output}: {error.strerror}") from error
        print(f"{len(history.records)} records in {arguments.output}", file=sys.stderr)
    return report_damage(history)
