"""``drainfsm doctor``: tries an environment before a job is trusted to it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.interruption import cleaning_up
from drainfsm.cli.options import Parser, add_options, positive_number, split_command
from drainfsm.cli.plan import quantity
from drainfsm.cli.settings import Settings, default_values, load_settings
from drainfsm.core.text import printable, span
from drainfsm.doctor.broker import check_broker
from drainfsm.doctor.findings import (
    Finding,
    Setup,
    Severity,
    error,
    exit_code,
    note,
    right,
    warning,
)
from drainfsm.doctor.host import check_host
from drainfsm.doctor.job import check_command, check_nodes, check_window
from drainfsm.doctor.platforms import check_sources
from drainfsm.doctor.storage import check_store
from drainfsm.errors import ConfigError, DrainfsmError
from drainfsm.log.server import agents_inbox
from drainfsm.policy.plan import plan
from drainfsm.runtime.clock import Clock
from drainfsm.store import CommitLog, open_store

USAGE = """doctor --job NAME [--store STORE] [--bytes SIZE] [options of run] [--trial SECONDS]
                       [--json] [-- CMD…]"""

EPILOG = """\
Takes the options, variables and file of `drainfsm run`, and tries what a drain of that job would
need on this machine: the window against a save's time, the command, the store (put-if-absent, what
an fsync is worth, bandwidth, room, clock), the log's server, metadata services and their hop
limit, scontrol and the site's limits, rights in Kubernetes, port and token, memory for staging,
disk for journals. Run it on every node (`srun drainfsm doctor …`), before the job or beside it: it
claims nothing, signals nobody, and removes the few objects that it writes.

--trial starts the command for a moment as a job of its own, in a temporary directory, sends SIGUSR1
to all of its processes (to no other), and ends it when the ranks hold: did it reach every rank, and
end no data loader? It takes the accelerators that the command takes: before the job, not beside it.

Each finding says what was seen, why it matters, and the command that fixes it, which it does not
run. Exit code 1: an error (a drain would save nothing, or the job not start); 3: warnings only."""

MARKS = {
    Severity.ERROR: "ERROR",
    Severity.WARNING: "warning",
    Severity.NOTE: "note",
    Severity.RIGHT: "right",
}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    host: str
    needed_ms: int
    findings: tuple[Finding, ...]


def parser() -> Parser:
    made = Parser("doctor", "Try an environment.", usage=USAGE, epilog=EPILOG)
    add_options(made, defaults=default_values())
    made.add_argument("--bytes", metavar="SIZE", help="of one checkpoint (default: the newest)")
    made.add_argument(
        "--trial",
        metavar="SECONDS",
        type=positive_number,
        help="start CMD for a moment, up to so long, to see whom a signal reaches",
    )
    made.add_argument("--json", action="store_true", help="one JSON object")
    made.add_argument(
        "--fix-none", action="store_true", help="change nothing: the default, and all that there is"
    )
    return made


def main(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    arguments = parser().parse(options)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    settings.check()
    setup = setup_of(settings, arguments, command)
    if arguments.trial is not None and not command:
        raise ConfigError("--trial: give the command that is to be started, behind `--`")
    findings = examine(setup)
    if arguments.trial is not None:
        with cleaning_up():
            findings += _tried("signal", lambda: check_signal(setup, timeout_s=arguments.trial))
    if arguments.json:
        diagnosis = Diagnosis(
            host=os.uname().nodename, needed_ms=setup.needed_ms, findings=tuple(findings)
        )
        sys.stdout.buffer.write(msgspec.json.encode(diagnosis) + b"\n")
    else:
        print("\n".join(_text(findings)))
    return exit_code(findings)


def setup_of(settings: Settings, arguments: argparse.Namespace, command: Sequence[str]) -> Setup:
    defaults = default_values()

    def given(key: str) -> str:
        value = settings.given(key)
        return str(defaults.get(key) or "" if value is None else value)

    allowances, store = settings.allowances, given("store")
    save_bytes = quantity("--bytes", arguments.bytes) if arguments.bytes else 0
    if store and not save_bytes:
        save_bytes = _committed_bytes(store, job=settings.job)
    node_count = int(given("nnodes") or 1)
    needed_ms = 0
    if save_bytes:
        needed_ms = plan(
            save_bytes=save_bytes, allowances=allowances, node_count=node_count
        ).needed_ms
    sources = settings.given("source")
    return Setup(
        job=settings.job,
        command=tuple(command),
        store_url=store,
        state_dir=settings.state_dir,
        nats=settings.nats_with(agents_inbox(settings.job)),
        sources=tuple(sources) if isinstance(sources, list | tuple) else (),
        node_count=node_count,
        node_rank=int(given("node_rank") or 0),
        coordinator=given("coordinator"),
        token_given=bool(given("token")),
        grace_ms=round(float(given("grace")) * 1_000),
        allowances=allowances,
        save_bytes=save_bytes,
        needed_ms=needed_ms,
        adapters=dict(settings.adapters),
    )


def _committed_bytes(store: str, *, job: str) -> int:
    """0: nothing is committed there, or it cannot be read, which a check tells."""
    try:
        commit = CommitLog(open_store(store), job_id=job).head().commit
    except DrainfsmError:
        return 0
    return commit.total_bytes if commit else 0


def examine(setup: Setup) -> list[Finding]:
    """All checks; one that fails is a finding, and does not stop the others."""
    found = [*_tried("window", lambda: check_window(setup))]
    found += _tried("command", lambda: check_command(setup))
    found += _tried("nodes", lambda: check_nodes(setup))
    if setup.store_url:
        store = open_store(setup.store_url)
        found += _tried("store", lambda: check_store(setup, store))
    else:
        found.append(note("store", "not named", fix="drainfsm doctor --store …"))
    found += _tried("host", lambda: check_host(setup))
    found += _tried("log", lambda: asyncio.run(check_broker(setup)))
    clock = Clock()
    found += _tried("sources", lambda: asyncio.run(check_sources(setup, clock.now_unix_ms)))
    return found


def check_signal(setup: Setup, *, timeout_s: float) -> Iterator[Finding]:
    """A start of the job beside everything that is real: see ``drainfsm.drills.trial``."""
    from drainfsm.drills.trial import try_signal

    trial = try_signal(setup.command, setup.allowances, timeout_s=timeout_s)
    if trial.problem:
        yield error(
            "signal",
            f"the trial gave no answer: {trial.problem}",
            why="whether a notice reaches the ranks is not known",
            fix="drainfsm doctor --trial SECONDS …, with more of them, or a command that trains",
        )
        return
    if trial.held_count < trial.rank_count:
        yield error(
            "signal",
            f"{trial.held_count} of {trial.rank_count} ranks stopped for a signal; not: "
            f"{', '.join(trial.missing)}",
            why="a save needs all of them at one step",
            fix="call session.step_done(step) behind every step of every rank; --quiesce-ms N, "
            "longer than a step",
        )
    if trial.ended:
        yield warning(
            "signal",
            f"a signal to all processes ended {len(trial.ended)} of {trial.helper_count} that "
            f"the ranks had started: {', '.join(sorted(set(trial.ended)))}",
            why="a rank that waits for one of them, a data loader say, does not get to the save",
            fix="call attach() before they are started; with spawn: `import drainfsm` at the top",
        )
    if trial.held_count == trial.rank_count and not trial.ended:
        yield right(
            "signal",
            f"a signal to all processes stopped {trial.held_count} of {trial.rank_count} ranks at "
            f"one step within {span(trial.held_ms)}, and ended none of the "
            f"{trial.helper_count} that they had started",
        )


def _tried(check: str, run: Callable[[], Iterable[Finding]]) -> list[Finding]:
    found: list[Finding] = []
    try:
        for finding in run():
            found.append(finding)
    except (DrainfsmError, OSError) as problem:
        found.append(error(check, str(problem), why="it could not be tried", fix="see the message"))
    return found


def _text(findings: Sequence[Finding]) -> Iterator[str]:
    order = list(MARKS)
    for finding in sorted(findings, key=lambda one: order.index(one.severity)):
        yield f"{MARKS[finding.severity]:8} {finding.check}: {printable(finding.seen)}"
        if finding.why:
            yield f"{'':9}why: {finding.why}"
        if finding.fix:
            yield f"{'':9}fix: {printable(finding.fix)}"
    counts = {mark: sum(one.severity is mark for one in findings) for mark in MARKS}
    yield ", ".join(f"{count} {MARKS[mark].lower()}" for mark, count in counts.items())
