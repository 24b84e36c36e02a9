"""``drainfsm status``: one screen about a running job, and what a drain would decide now."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.logs import WHERE, add_log_options, read_history, report_damage
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import load_settings
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError
from drainfsm.log.journal import job_names
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.paths import read_run_info, run_info_path
from drainfsm.views.status import status, status_text

USAGE = """status [--job NAME] [--nats URL | --state-dir DIR | --file PATH]
                       [--notice SECONDS …] [--json]"""

EPILOG = (
    WHERE
    + """

Without a job (--job, DRAINFSM_JOB, drainfsm.toml) it is the only one in the state directory.

Says where the newest attempt stands, how old its last commit is, and whether a notice of a given
length in seconds (--notice, may be repeated; default 30 and 120) would be saved, with the
arithmetic. Exit code 0: each of them would be saved, or the job is over; 1: one would not."""
)

NOTICES_S = (30.0, 120.0)


def parser() -> Parser:
    made = Parser("status", "Say what a drain would decide now.", usage=USAGE, epilog=EPILOG)
    add_log_options(made)
    made.add_argument(
        "--notice", metavar="SECONDS", type=float, action="append", help="the notice's window"
    )
    made.add_argument("--json", action="store_true", help="one JSON object")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    windows_s = arguments.notice or NOTICES_S
    if not all(0 < window_s < 1e9 for window_s in windows_s):
        raise ConfigError("--notice: a window is more than 0 seconds")
    _take_only_job(arguments)
    history = read_history(arguments)
    logs = [log for log in history.logs if arguments.epoch in (None, log.epoch)]
    jobs = sorted({log.job_id for log in logs})
    if len(jobs) != 1:
        raise ConfigError(f"which job? give --job; there are {', '.join(jobs) or 'none'}")
    found = status(
        logs,
        now_unix_ms=Clock().now_unix_ms(),
        windows_ms=[round(window_s * 1_000) for window_s in windows_s],
    )
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    else:
        for line in status_text(found):
            print(line)
        if arguments.file is None and arguments.nats is None:
            _print_stream(arguments.state_dir, jobs[0])
    report_damage(history)
    return int(any(one.reason for one in found.answers))


def _take_only_job(arguments: argparse.Namespace) -> None:
    """Where no job is named, and the state directory knows one alone."""
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    if arguments.file is not None or settings.given("job") or settings.given("nats"):
        return
    names = job_names(settings.state_dir)
    if len(names) > 1:
        raise ConfigError(f"which job? give --job; there are {', '.join(names)}")
    arguments.job = names[0] if names else None


def _print_stream(state_dir: str | None, job: str) -> None:
    """How others follow the log of what runs on this machine."""
    given = {"state_dir": state_dir}
    settings = load_settings(given, environment=os.environ, directory=Path.cwd())
    info = read_run_info(settings.state_dir, job)
    if info is None or not info.nats_url:
        return
    from drainfsm.log.server import public

    print(f"  its log is at {public(info.nats_url)}: {info.stream}, subjects {info.subjects}")
    if info.websocket_url:
        print(f"    for browsers: {public(info.websocket_url)}")
    where = printable(str(run_info_path(settings.state_dir, job)))
    print(f"    (with their token, where they have one: {where})")
    if info.ends_with_attempt:
        print("    This server ends with its attempt; the journals outlive it, and are followed by")
        print(f"    drainfsm watch --job {printable(job)}, and by drainfsm serve.")
