"""The log that ``replay``, ``explain`` and ``export`` read, as their options say."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from drainfsm.cli.options import NATS_KEYS, Parser, add_options
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.codec import decode
from drainfsm.core.records import Record
from drainfsm.core.text import printable
from drainfsm.errors import BrokerError, ConfigError
from drainfsm.views.attempt_logs import (
    Attempts,
    attempts_in,
    attempts_of_file,
    attempts_of_journals,
    attempts_of_stream,
)
from drainfsm.views.history import (
    History,
    is_pipe,
    read_file,
    read_journals,
    read_kept,
    read_stream,
    with_kept,
)
from drainfsm.views.jobs import jobs_of_file, jobs_of_state_dir, jobs_of_stream
from drainfsm.views.replay import AttemptReplay, replay_job

if TYPE_CHECKING:
    from drainfsm.log.server import NatsServer
    from drainfsm.views.watch import Reader

UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
LINE_CHARS_MAX = 4_000
"""Length of a line for people; ``--json`` and ``export`` have all of it."""

WHERE = """\
The log is read from --file (an exported file or a journal), else from the stream of --nats, else
from the journals in --state-dir and, with --store on the command line, from what attempts have put
under log/ beside the checkpoints, so that it outlives their machines."""


def add_log_options(parser: Parser, *more: str) -> None:
    """``more``: keys of options besides those that say where the log is."""
    add_options(parser, ("job", *NATS_KEYS, "state_dir", *more))
    parser.add_argument("--file", metavar="PATH", type=Path, help="exported file, or a journal")
    parser.add_argument("--epoch", metavar="N", type=int, help="only this attempt")


def reader_of(
    settings: Settings, file: Path | None, *, job: str | None, follows: bool = True
) -> Reader:
    """Of what the options name. ``job`` None: all jobs. ``follows`` False: it is read once.

    Raises:
        ConfigError: it cannot be followed.
    """
    from drainfsm.runtime.clock import Clock
    from drainfsm.views.watch import Reader

    if follows and file is not None and is_pipe(file):
        raise ConfigError(f"--file {file}: a pipe cannot be followed, only read once")
    return Reader(
        clock=Clock().now_unix_ms,
        job=job,
        nats=settings.nats or "",
        file=file,
        state_dir=settings.state_dir,
    )


def read_history(
    arguments: argparse.Namespace, *, each: Callable[[bytes], Record] = decode
) -> History:
    """What the options name. ``each``: see ``read_file``.

    Raises:
        ConfigError: they name no log.
        BrokerError: the NATS server cannot be read.
    """
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    if arguments.file is not None:
        history = read_file(arguments.file, each=each)
        if arguments.job is not None:
            logs = tuple(log for log in history.logs if log.job_id == settings.job)
            history = History(logs=logs, damage=history.damage)
        where = str(arguments.file)
    elif server := settings.nats:
        where = _stream_at(server)
        with _hinting():
            history = read_stream(server, job_id=settings.job)
    else:
        where = f"the journals under {settings.state_dir}"
        history = read_journals(settings.state_dir, job_id=settings.job)
        if getattr(arguments, "store", None) is not None:
            history = with_kept(history, read_kept(store_of(settings)))
            where += " and under log/ in the store"
    if not history.records and not history.damage:
        raise _no_records(where, arguments)
    return history


@contextlib.contextmanager
def read_attempts(arguments: argparse.Namespace) -> Iterator[Attempts]:
    """What the options name, attempt by attempt; with ``--store``, all of it at once.

    Raises:
        ConfigError: they name no log.
        BrokerError: the NATS server cannot be read.
    """
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    with contextlib.ExitStack() as stack:
        if arguments.file is not None:
            job = None if arguments.job is None else settings.job
            found = stack.enter_context(attempts_of_file(arguments.file, job_id=job))
            where = str(arguments.file)
        elif server := settings.nats:
            where = _stream_at(server)
            with _hinting():
                reading = attempts_of_stream(server, job_id=settings.job, epoch=arguments.epoch)
                found = stack.enter_context(reading)
        elif getattr(arguments, "store", None) is None:
            found = attempts_of_journals(settings.state_dir, job_id=settings.job)
            where = f"the journals under {settings.state_dir}"
        else:
            found, where = attempts_in(read_history(arguments)), ""
        if found.empty:
            raise _no_records(where, arguments)
        yield found


def all_jobs(
    arguments: argparse.Namespace, *, each: Callable[[bytes], Record] = decode
) -> Iterator[History]:
    """One after another: of the file, the stream or the journals that the options name. ``each``:
    how a record is read; by ``decode_as_stored`` for who passes them on."""
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    if arguments.file is not None:
        return jobs_of_file(arguments.file, each=each)
    if server := settings.nats:
        return jobs_of_stream(server, each=each)
    return jobs_of_state_dir(settings.state_dir)


def replays(arguments: argparse.Namespace, history: History) -> list[AttemptReplay]:
    """Every attempt, or the one of ``--epoch``.

    Raises:
        ConfigError: there is no such attempt.
    """
    found = replay_job(history.logs)
    if arguments.epoch is None:
        return found
    chosen = [replay for replay in found if replay.final.epoch == arguments.epoch]
    if not chosen:
        epochs = ", ".join(str(replay.final.epoch) for replay in found)
        raise ConfigError(f"--epoch {arguments.epoch}: no such attempt; there are {epochs}")
    return chosen


def report_damage(history: History | Attempts) -> int:
    """The exit code. What could not be read is reported once, after what could."""
    if not history.damage:
        return 0
    sys.stdout.flush()
    print(f"drainfsm: {printable(history.damage, chars_max=LINE_CHARS_MAX)}", file=sys.stderr)
    return 1


def _stream_at(server: NatsServer) -> str:
    from drainfsm.log.server import public

    return f"the stream at {public(server)}"


@contextlib.contextmanager
def _hinting() -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        raise BrokerError(f"{error} (journals of this machine: leave --nats out)") from error


def _no_records(where: str, arguments: argparse.Namespace) -> ConfigError:
    of = f" of job {arguments.job}" if arguments.job else ""
    return ConfigError(f"{where}: no records{of}; give --file, --nats or --state-dir")


def instant(text: str, *, option: str = "--since") -> int:
    """What ``option`` was given.

    Raises:
        ConfigError: it is neither an instant nor a span.
    """
    from drainfsm.runtime.clock import Clock

    if match := re.fullmatch(r"(\d{1,6})([mhdw])", text):
        return Clock().now_unix_ms() - int(match[1]) * UNITS_MS[match[2]]
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option} {text}: give a date (2026-11-01), an instant (2026-11-01T12:00) or a span "
            "(7d)"
        ) from None
