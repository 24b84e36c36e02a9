"""``drainfsm explain``: why a drain ended as it did, with the arithmetic."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.logs import (
    LINE_CHARS_MAX,
    WHERE,
    add_log_options,
    read_attempts,
    read_history,
    replays,
    report_damage,
)
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import decisions_in, store_of
from drainfsm.core.explain import explain
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError
from drainfsm.views.history import History

USAGE = """explain (--job NAME | --file PATH) [--epoch N] [--nats URL]
                        [--store URL_OR_PATH] [--json | --markdown | --html FILE]
                        [--what-if NAME=N,…]"""

EPILOG = (
    WHERE
    + """

--what-if grace=60,exit_margin_ms=2000,store_bytes_per_s=2e9,quantile=0.95: the same drain under
other settings; any allowance of `drainfsm run` can be given. Says what each decision would have
been, and the smallest window in which the drain would have saved.

Decisions about the job's restarts and preemptions follow its attempts: those that `supervise` has
recorded in the state directory, and with --store those of `policy restart --record`."""
)


def parser() -> Parser:
    about = "Say why every drain ended as it did. Each decision is recomputed from its own numbers."
    made = Parser("explain", about, usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store")
    shape = made.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object a drain")
    shape.add_argument("--markdown", action="store_true", help="for an incident ticket")
    shape.add_argument("--html", metavar="FILE", type=Path, help="one page, works from disk")
    made.add_argument("--what-if", metavar="NAME=N,…", help="under other settings")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    asked = arguments.what_if is not None
    if arguments.json or arguments.markdown or arguments.html or asked:
        history = read_history(arguments)
        replays(arguments, history)  # raises where there is no such attempt
        _render(arguments, history)
        return report_damage(history)
    with read_attempts(arguments) as attempts:
        for replay in attempts.replays(arguments.epoch):
            final = replay.final
            print(f"job {printable(final.job_id)}, attempt {final.epoch}" + _odd(final.lost))
            for line in explain(replay.counted):
                print(f"  {printable(line, chars_max=LINE_CHARS_MAX)}")
        for line in _decisions(arguments):
            print(printable(line, chars_max=LINE_CHARS_MAX))
        return report_damage(attempts)


def _decisions(arguments: argparse.Namespace) -> Iterator[str]:
    """Decisions about the job outside its attempts: from the state directory, if the journals are
    read from there, and from the store, if one is named."""
    from drainfsm.policy.decisions import read_decisions
    from drainfsm.policy.policy_text import explain_decision
    from drainfsm.views.table import day_and_time

    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    stores = [] if arguments.store is None else [store_of(settings)]
    if arguments.file is None and not settings.given("nats"):
        stores.append(decisions_in(settings.state_dir, job=settings.job))
    decisions = [one for store in stores for one in read_decisions(store)]
    for decision in sorted(decisions, key=lambda one: one.at_unix_ms):
        yield f"Decided {' '.join(day_and_time(decision.at_unix_ms))}"
        yield from (f"  {line}" for line in explain_decision(decision))


def _render(arguments: argparse.Namespace, history: History) -> None:
    from drainfsm.views.postmortem import postmortems
    from drainfsm.views.postmortem_text import NO_DRAIN, markdown, page, what_if_text
    from drainfsm.views.what_if import parse_settings

    settings = None if arguments.what_if is None else parse_settings(arguments.what_if)
    found = postmortems(history.logs, epoch=arguments.epoch, what_if=settings)
    if arguments.json:
        for one in found:
            sys.stdout.buffer.write(msgspec.json.encode(one) + b"\n")
    elif not found and not arguments.html:
        print(NO_DRAIN)
    elif arguments.html:
        try:
            arguments.html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {arguments.html}: {error.strerror}") from error
    elif arguments.markdown:
        for one in found:
            print("\n".join(markdown(one)))
    else:
        for one in found:
            print(f"Drain {printable(one.drain_id)}: {one.outcome}")
            for line in what_if_text(one):
                print(f"  {line}")


def _odd(lost: str) -> str:
    return f" (lost: {printable(lost)})" if lost else ""
