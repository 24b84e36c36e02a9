"""``drainfsm report``: rates and durations over all attempts in a log, of one job or of all."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.logs import (
    LINE_CHARS_MAX,
    WHERE,
    add_log_options,
    all_jobs,
    instant,
    read_history,
    replays,
    report_damage,
)
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError
from drainfsm.runtime.clock import Clock
from drainfsm.store.drills import read_drills
from drainfsm.store.rehearsals import read_rehearsals
from drainfsm.views.attempts import AttemptReport
from drainfsm.views.fleet import PHASES, AttemptFilter, Fleet
from drainfsm.views.history import History
from drainfsm.views.report import Report, report_jobs, with_drills
from drainfsm.views.report_text import fleet_text, report_text

USAGE = """report (--job NAME | --file PATH) [--epoch N] [--nats URL]
                       [--store URL_OR_PATH] [--json]
       drainfsm report --all [--nats URL | --state-dir DIR | --file PATH]
                       [--since WHEN] [--cause WORD] [--source NAME] [--world-size N]
                       [--json | --csv | --html FILE]"""

EPILOG = (
    WHERE
    + """

Computed from the log alone: losses without a notice, checkpoint age at failure, requeue delay,
restore time, restarts that got healthy, attempts by ending, drains by outcome, work lost. With
--store on the command line: and the restores and drains that `drainfsm drill` rehearsed.

--all adds up every job of the stream, of the journals here or of a file: headroom, causes, phases
by world size, losses by day. --since is a date (2026-11-01, with a time 2026-11-01T12:00) in UTC,
or how long ago (7d, 12h). --csv prints a row an attempt."""
)

COLUMNS = (
    *("job_id", "epoch", "ending", "reason", "noticed", "started_unix_ms", "ended_unix_ms"),
    *("exit_code", "world_size", "restored_step", "restore_ms", "healthy_after_ms"),
    *("commit_count", "failed_save_count", "committed_step", "requeue_delay_ms"),
    *("checkpoint_age_ms", "checkpoint_age_ms_max", "work_lost_ms", "steps_lost"),
)
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
DRAIN_COLUMNS = ("drain_outcome", "drain_cause", "drain_sources", "window_ms", "remaining_ms")


def parser() -> Parser:
    made = Parser("report", "Say what a job's history costs.", usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store")
    made.add_argument("--all", action="store_true", help="every job")
    made.add_argument("--since", metavar="WHEN", help="attempts that started since then")
    made.add_argument("--cause", metavar="WORD", help="attempts with a drain of this cause")
    made.add_argument("--source", metavar="NAME", help="attempts with a notice of this source")
    made.add_argument("--world-size", metavar="N", type=int, help="attempts with this many ranks")
    shape = made.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object")
    shape.add_argument("--csv", action="store_true", help="a row an attempt; with --all")
    shape.add_argument("--html", metavar="FILE", type=Path, help="one page; with --all")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    wanted = AttemptFilter(
        since_unix_ms=None if arguments.since is None else instant(arguments.since),
        cause=arguments.cause,
        source=arguments.source,
        world_size=arguments.world_size,
    )
    if arguments.all:
        return _all(arguments, wanted)
    if not wanted.empty or arguments.csv or arguments.html:
        raise ConfigError("report: filters, --csv and --html go with --all")
    history = read_history(arguments)
    replays(arguments, history)  # raises where there is no such attempt
    made = report_jobs(history.logs, epoch=arguments.epoch)
    if arguments.store is not None:
        made = _with_drills(made, arguments)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    else:
        for line in report_text(made, now_unix_ms=Clock().now_unix_ms()):
            print(printable(line, chars_max=LINE_CHARS_MAX))
    return report_damage(history)


def _with_drills(made: Report, arguments: argparse.Namespace) -> Report:
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    store, job_id = store_of(settings), settings.job
    drills, rehearsals = read_drills(store, job_id=job_id), read_rehearsals(store, job_id=job_id)
    return with_drills(made, drills, rehearsals, job_id=job_id)


# --- all jobs -----------------------------------------------------------------------------------


def _all(arguments: argparse.Namespace, wanted: AttemptFilter) -> int:
    if arguments.epoch is not None or arguments.store is not None or arguments.job is not None:
        raise ConfigError("report: --all goes with neither --job, --epoch nor --store")
    rows = csv.writer(sys.stdout, lineterminator="\n") if arguments.csv else None
    if rows is not None:
        rows.writerow((*COLUMNS, *DRAIN_COLUMNS, *(f"{phase}_ms" for phase in PHASES)))

    def row(attempt: AttemptReport) -> None:
        if rows is not None:
            rows.writerow(_cells(attempt))

    fleet = Fleet(wanted, row=row)
    for job in all_jobs(arguments):
        fleet.add(job)
    made = fleet.report()
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    elif arguments.html:
        from drainfsm.views.report_html import page

        try:
            arguments.html.write_text(page(made), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {arguments.html}: {error.strerror}") from error
    elif rows is None:
        for line in fleet_text(made):
            print(printable(line, chars_max=LINE_CHARS_MAX))
    return report_damage(History(logs=(), damage=made.damage))


def _cells(attempt: AttemptReport) -> list[object]:
    """Of several drains the last one: it ended the attempt."""
    cells = [getattr(attempt, column) for column in COLUMNS]
    cells[COLUMNS.index("ending")] = attempt.ending.value
    if not attempt.drains:
        return [_cell(one) for one in cells] + [""] * (len(DRAIN_COLUMNS) + len(PHASES))
    drain = attempt.drains[-1]
    sources = " ".join(drain.sources)
    cells += [drain.outcome, drain.cause, sources, drain.window_ms, drain.remaining_ms]
    return [_cell(one) for one in (*cells, *(drain.phases_ms.get(phase) for phase in PHASES))]


def _cell(value: object) -> object:
    """A log's text must not become a formula in a spreadsheet, also not in one that takes wide
    characters for narrow ones."""
    if not isinstance(value, str):
        return value
    text = printable(value, chars_max=LINE_CHARS_MAX)
    return f"'{text}" if text.startswith(FORMULA) else text
