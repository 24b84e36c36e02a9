"""``drainfsm report``: rates and durations over all attempts in a log."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.logs import (
    LINE_CHARS_MAX,
    WHERE,
    add_log_options,
    read_history,
    replays,
    report_damage,
)
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.text import printable
from drainfsm.store.drills import read_drills
from drainfsm.views.report import Report, report, with_drills
from drainfsm.views.report_text import report_text

USAGE = """report (--job NAME | --file PATH) [--epoch N] [--nats URL]
                       [--store URL_OR_PATH] [--json]"""

EPILOG = (
    WHERE
    + """

Computed from the log alone: attempts by ending, drains by outcome, losses without a notice,
checkpoint age at failure, requeue delay, restore time, restarts that got healthy, work lost. With
--store on the command line: and the restores that `drainfsm drill` rehearsed."""
)


def parser() -> Parser:
    made = Parser("report", "Say what a job's history costs.", usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store")
    made.add_argument("--json", action="store_true", help="one JSON object")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    history = read_history(arguments)
    replays(arguments, history)  # raises where there is no such attempt
    made = report(history.logs, epoch=arguments.epoch)
    if arguments.store is not None:
        made = _with_drills(made, arguments)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    else:
        for line in report_text(made):
            print(printable(line, chars_max=LINE_CHARS_MAX))
    return report_damage(history)


def _with_drills(made: Report, arguments: argparse.Namespace) -> Report:
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    drills = read_drills(store_of(settings), job_id=settings.job)
    return with_drills(made, drills, job_id=settings.job)
