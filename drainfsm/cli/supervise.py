"""``drainfsm supervise``: starts ``drainfsm run`` again where no scheduler does."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from drainfsm.cli.options import Parser, add_options, split_command
from drainfsm.cli.restarting import Restarts
from drainfsm.cli.settings import Settings, default_values, load_settings
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.errors import ConfigError
from drainfsm.policy.rules import RestartRules
from drainfsm.runtime.config import LOG_FORMATS
from drainfsm.runtime.liveness import ended_with, sign_of_life, silence
from drainfsm.runtime.output import printed_logs
from drainfsm.runtime.supervisor import Supervisor

USAGE = """supervise --job NAME [--state-dir DIR] [--silence SECONDS] [--standby]
                          [options] -- drainfsm run …"""

EPILOG = """\
The command is started again when it exits with 75 (it drained, or was lost, or the store did not
answer at its start), when a signal ended it, or when its attempt has given no sign of life for
--silence: then it is killed first, and the next attempt fences what may be left of it. Any other
exit code is passed on: 0, 76 (a newer attempt took over), 77 (no progress), and the job's own. A
signal is passed on to the command, and nothing is started after it: this process's capacity is
going away, too.

Drains and losses in a row have budgets of their own. The pause doubles with each loss, and with
each drain after --free; a healthy attempt ends the row: one that lived for --settled and committed
something. Each decision is on record in the state directory: `drainfsm explain` shows it.

--standby: another machine with the same --state-dir runs the job; begin only when its attempt has
drained or fallen silent. Where it ended otherwise, exit with its code."""

DEFAULTS = RestartRules()
SILENCE_S = 20.0

log = logging.getLogger("drainfsm.supervise")


def parser() -> Parser:
    made = Parser("supervise", "Keep a job running.", usage=USAGE, epilog=EPILOG)
    add_options(made, ("job", "state_dir", "silence", "log_format"), defaults=default_values())
    for flag, kind, default, text in (
        ("--restarts", _count, DEFAULTS.failures_max, "most losses in a row"),
        ("--preemptions", _count, DEFAULTS.preemptions_max, "most drains in a row"),
        ("--free", _count, DEFAULTS.free_preemptions, "drains in a row before the pause doubles"),
        ("--backoff", _seconds, DEFAULTS.pause_s, "seconds before the first; it doubles"),
        ("--backoff-max", _seconds, DEFAULTS.pause_s_max, "longest wait before a restart"),
        ("--settled", _seconds, DEFAULTS.healthy_s, "an attempt that lives this long ends the row"),
    ):
        made.add_argument(
            flag, metavar="N", type=kind, default=default, help=f"{text} (default: {default:g})"
        )
    made.add_argument("--standby", action="store_true", help="wait for another attempt to end")
    return made


def main(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    arguments = parser().parse(options)
    if not command:
        raise ConfigError("supervise: no command; put it behind `--`: … -- drainfsm run …")
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    with printed_logs(
        log_format=log_format(settings), prefix="drainfsm supervise", fields={"job": settings.job}
    ):
        return asyncio.run(_supervise(command, arguments, settings))


async def _supervise(
    command: Sequence[str], arguments: argparse.Namespace, settings: Settings
) -> int:
    silence_s = _silence_s(settings)
    state_dir, job = settings.state_dir, settings.job
    look = partial(sign_of_life, state_dir, job=job)
    if arguments.standby:
        code = await _stand_by(state_dir, job, silence_s=silence_s)
        if code not in (None, EX_TEMPFAIL):
            log.info("the job ended with exit code %s", code)
            return code
    restarts = Restarts(state_dir, job=job, rules=_rules(arguments))
    await restarts.begin()
    supervisor = Supervisor(
        command, after=restarts.after, silence_s=silence_s, look=look, say=log.info
    )
    try:
        return await supervisor.run()
    except OSError as error:
        raise ConfigError(f"supervise: {command[0]}: {error.strerror}") from error


async def _stand_by(state_dir: Path, job: str, *, silence_s: float) -> int | None:
    """How the attempt elsewhere ended; None: it fell silent."""
    look = partial(sign_of_life, state_dir, job=job)
    silent = asyncio.ensure_future(
        silence(look, since=look(), silence_s=silence_s, needs_sign=False)
    )
    while True:
        done, _ = await asyncio.wait({silent}, timeout=silence_s / 8)
        code = ended_with(state_dir, job=job)
        if code is not None or done:
            silent.cancel()
            return code


def _rules(arguments: argparse.Namespace) -> RestartRules:
    return RestartRules(
        free_preemptions=arguments.free,
        pause_s=arguments.backoff,
        pause_s_max=arguments.backoff_max,
        preemptions_max=arguments.preemptions,
        failures_max=arguments.restarts,
        healthy_s=arguments.settled,
    )


def _silence_s(settings: Settings) -> float:
    silence_s = settings.given("silence")
    if not isinstance(silence_s, float):
        return SILENCE_S
    if silence_s <= 0:
        raise ConfigError(f"silence: {silence_s:g} s is not more than 0 s")
    return silence_s


def log_format(settings: Settings) -> str:
    """Raises: ConfigError."""
    chosen = settings.given("log_format") or LOG_FORMATS[0]
    if chosen not in LOG_FORMATS:
        raise ConfigError(f"log_format: {chosen!r} is not one of {', '.join(LOG_FORMATS)}")
    return str(chosen)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number
