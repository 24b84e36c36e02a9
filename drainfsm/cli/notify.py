"""``drainfsm notify``: hand a notice to a running agent on this machine, or take one back."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET

from drainfsm.cli.options import Parser, add_options
from drainfsm.errors import ConfigError

USAGE = """notify --job NAME (--in SECONDS | --deadline RFC3339 | --now) [--soft] [--cause TEXT]
                       [--wait]
       drainfsm notify --job NAME --withdraw --id ID [--cause TEXT]"""

EPILOG = """\
Returns once the notice is on record. A notice is HARD: processes may be killed at the deadline, and
it cannot be taken back. With --soft training goes on until the latest safe start, and --withdraw
takes the notice back as long as no stop step is agreed.

With --wait it returns once the agent has left (of several on this machine: all of the job), however
it left: for a hook after which the platform ends what is left, such as preStop."""

SOURCE = "notify"

AHEAD_S_MAX = 90 * 24 * 3_600
"""A deadline further ahead is a typo, or too early to act on."""


def parser() -> Parser:
    about = "Tell a running job that its capacity goes away."
    made = Parser("notify", about, usage=USAGE, epilog=EPILOG)
    add_options(made, ("job", "state_dir"))
    when = made.add_mutually_exclusive_group(required=True)
    when.add_argument("--in", dest="in_s", metavar="SECONDS", type=float, help="from now")
    when.add_argument("--deadline", metavar="RFC3339", help="e.g. 2027-01-15T08:00:00Z")
    when.add_argument("--now", action="store_true", help="the time is up: the job ends at once")
    when.add_argument("--withdraw", action="store_true", help="take a SOFT notice back")
    made.add_argument("--soft", action="store_true", help="it may be moved or taken back")
    made.add_argument("--cause", metavar="TEXT", default="", help="why (default: unknown)")
    made.add_argument("--by", metavar="JOB", default="", help="the job that takes the capacity")
    made.add_argument("--id", metavar="ID", default="", help="the same one again is a repeat")
    made.add_argument(
        "--wait", action="store_true", help="return once the job's agents here have left"
    )
    made.add_argument("--node-rank", metavar="R", type=int, help="which agent of this machine")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    if arguments.withdraw and not arguments.id:
        raise ConfigError("--withdraw needs --id: which notice is taken back?")
    if arguments.withdraw and arguments.wait:
        raise ConfigError("--wait is for a notice: after --withdraw the job trains on")
    from drainfsm.cli.settings import load_settings

    given = {key: value for key, value in vars(arguments).items() if key != "node_rank"}
    settings = load_settings(given, environment=os.environ, directory=Path.cwd())
    if arguments.withdraw:
        return _withdraw(arguments, settings.state_dir, settings.job)
    return _give(arguments, settings.state_dir, settings.job)


def _give(arguments: argparse.Namespace, state_dir: Path, job: str) -> int:
    from drainfsm.core.notice import Cause, Notice, NoticeClass
    from drainfsm.runtime.agent.notify import agents_here, give_notice, wait_until_gone
    from drainfsm.runtime.clock import Clock

    now_unix_ms = Clock().now_unix_ms()
    notice = Notice(
        source=SOURCE,
        native_id=arguments.id or secrets.token_hex(4),
        cause=Cause(arguments.cause or Cause.UNKNOWN),
        notice_class=NoticeClass.SOFT if arguments.soft else NoticeClass.HARD,
        deadline_unix_ms=deadline_of(arguments, now_unix_ms=now_unix_ms),
        received_unix_ms=now_unix_ms,
        evicted_by=arguments.by or UNSET,
    )
    node_rank: int | None = arguments.node_rank
    detail = give_notice(state_dir, job=job, notice=notice, node_rank=node_rank)
    print(f"notice {notice.identity} is on record: {detail}", flush=True)
    if arguments.wait:  # an agent that has ended since then has left
        wait_until_gone(agents_here(state_dir, job=job, node_rank=node_rank))
    return 0


def _withdraw(arguments: argparse.Namespace, state_dir: Path, job: str) -> int:
    from drainfsm.runtime.agent.notify import withdraw_notice

    detail = withdraw_notice(
        state_dir,
        job=job,
        source=SOURCE,
        native_id=arguments.id,
        reason=arguments.cause,
        node_rank=arguments.node_rank,
    )
    print(f"notice {SOURCE}/{arguments.id} was taken back: {detail}")
    return 0


def deadline_of(arguments: argparse.Namespace, *, now_unix_ms: int) -> int:
    """Raises: ConfigError: no instant ahead, within reason."""
    if arguments.now:
        return now_unix_ms
    seconds: float | None = arguments.in_s
    if seconds is not None:
        _check_ahead(seconds, given=f"--in {seconds:g}", soft=arguments.soft)
        return now_unix_ms + round(seconds * 1_000)
    from datetime import datetime

    try:
        instant = datetime.fromisoformat(arguments.deadline)
    except ValueError as error:
        raise ConfigError(f"--deadline {arguments.deadline}: {error}") from error
    if instant.tzinfo is None:
        raise ConfigError(f"--deadline {arguments.deadline}: say which time zone; Z is UTC")
    deadline_unix_ms = round(instant.timestamp() * 1_000)
    ahead_s = (deadline_unix_ms - now_unix_ms) / 1_000
    _check_ahead(ahead_s, given=f"--deadline {arguments.deadline}", soft=arguments.soft)
    return deadline_unix_ms


def _check_ahead(ahead_s: float, *, given: str, soft: bool) -> None:
    """Stricter than for a platform: people make typing errors.

    Raises: ConfigError.
    """
    if not ahead_s > 0:  # NaN, too
        ago = f"is {-ahead_s:.0f} s in the past" if ahead_s < 0 else "leaves no time to act"
        raise ConfigError(
            f"{given}: {ago}; to end the job at once, without a save, give --now. Nothing was done"
        )
    if ahead_s > AHEAD_S_MAX:
        days = f"{ahead_s / 86_400:.6g} days ahead, more than {AHEAD_S_MAX // 86_400}"
        hard = "" if soft else ", and without --soft the job would be stopped at once"
        raise ConfigError(f"{given}: is {days}{hard}; give it when it is nearer. Nothing was done")
