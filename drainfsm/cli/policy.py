"""``drainfsm policy``: who may preempt whom, when a job comes back, who evicts whom in circles."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from drainfsm.cli.logs import add_log_options
from drainfsm.cli.options import Parser
from drainfsm.cli.settings import Settings, default_values, load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.foreign import UNREADABLE, read_json
from drainfsm.core.text import printable
from drainfsm.errors import ConfigError, DrainfsmError
from drainfsm.policy.decisions import record_decision
from drainfsm.policy.events import (
    Decision,
    RestartAction,
    RestartDecided,
    Running,
    Waiting,
)
from drainfsm.policy.past import Past, past_attempts
from drainfsm.policy.policy_text import explain_decision, rules_text
from drainfsm.policy.preemption import decide_preemption
from drainfsm.policy.restarts import decide_after
from drainfsm.policy.rules import Rules, read_rules
from drainfsm.runtime.clock import Clock
from drainfsm.store import ObjectStore

USAGE = """policy rules [--rules FILE] [--json]
       drainfsm policy preempt [--rules FILE] [--input FILE] [--json]
       drainfsm policy restart --job NAME --store STORE [--rules FILE] [--record]
                       [--slurm JOBID [--release]] [--annotations [--tier NAME]] [--json]
       drainfsm policy cascades [--nats URL | --state-dir DIR | --file PATH] [--job NAME]
                       [--rules FILE] [--json | --metrics]"""

EPILOG = """\
rules: who may preempt whom, and the same for Slurm. FILE is TOML: [preemption], [restart] and
[cascade].
preempt: which running jobs make room for one that waits, for anybody's scheduler. Reads one JSON
object (stdin): waiting, running, free_capacity, and now_unix_ms if another clock counts. Exit code
1: there is no room to be made.
restart: whether and when the job comes back, from the requeue records in its store. --record stores
the decision there, for `explain --store`. --slurm sets the start time of a job that waits in the
queue, or holds it; --release releases one that was held. Exit code 1: it is held.
cascades: jobs that evict one another in a chain or a circle, as their notices say (`notify --by`),
and how much time goes into starting and draining. Exit code 1: a cascade, or more thrashing than
the rules allow."""

WHAT = ("rules", "preempt", "restart", "cascades")
BELONGS_TO = {
    "input": ("preempt",),
    "record": ("preempt", "restart", "cascades"),
    "slurm": ("restart",),
    "release": ("restart",),
    "annotations": ("restart",),
    "tier": ("restart",),
    "metrics": ("cascades",),
}
"""What has no meaning elsewhere is refused."""

ANNOTATION = "drainfsm.io/"


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``policy preempt`` reads."""

    waiting: Waiting
    running: tuple[Running, ...]
    free_capacity: int = 0
    now_unix_ms: int | None = None


def parser() -> Parser:
    made = Parser("policy", "Decide on preemptions and restarts.", usage=USAGE, epilog=EPILOG)
    made.add_argument("what", choices=WHAT, help="what to decide, or to show")
    add_log_options(made, "store", "attempts")
    made.add_argument("--rules", metavar="FILE", type=Path, help="TOML (default: those shown)")
    made.add_argument("--input", metavar="FILE", type=Path, help="of preempt (default: stdin)")
    made.add_argument("--record", action="store_true", help="keep the decision in --store")
    made.add_argument("--slurm", metavar="JOBID", help="carry the decision out on this job")
    made.add_argument("--release", action="store_true", help="of a job that is held")
    made.add_argument("--annotations", action="store_true", help="for a Kubernetes workload")
    made.add_argument("--tier", metavar="NAME", help="of the job, for --annotations")
    shape = made.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object")
    shape.add_argument("--metrics", action="store_true", help="of cascades, for Prometheus")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    for option, belongs_to in BELONGS_TO.items():
        if getattr(arguments, option) and arguments.what not in belongs_to:
            raise ConfigError(f"--{option} goes with `policy {'` and `policy '.join(belongs_to)}`")
    for option, needed in (("release", "slurm"), ("tier", "annotations")):
        if getattr(arguments, option) and not getattr(arguments, needed):
            raise ConfigError(f"--{option} goes with --{needed}")
    rules = rules_of(arguments.rules)
    if arguments.what == "cascades":
        from drainfsm.cli.policy_cascades import show_cascades

        return show_cascades(arguments, rules.cascade)
    if arguments.what == "restart":
        return _restart(arguments, rules)
    if arguments.what == "preempt":
        return _preempt(arguments, rules)
    if arguments.json:
        _print_json(rules)
    else:
        print("\n".join(rules_text(rules)))
    return 0


def rules_of(path: Path | None) -> Rules:
    """Raises: ConfigError: there is no such file, or it holds no rules."""
    if path is None:
        return Rules()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--rules {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"--rules {path}: {error}") from error
    return read_rules(text, where=f"--rules {path}")


def _preempt(arguments: argparse.Namespace, rules: Rules) -> int:
    try:
        data = arguments.input.read_bytes() if arguments.input else sys.stdin.buffer.read()
    except OSError as error:
        raise ConfigError(f"--input {arguments.input}: {error.strerror}") from error
    asked = read_json(data, Question, lambda why: ConfigError(f"policy preempt: {why}"))
    store = _store(arguments) if arguments.record else None
    now = asked.now_unix_ms
    decision = decide_preemption(
        asked.waiting,
        asked.running,
        rules.preemption,
        free_capacity=asked.free_capacity,
        now_unix_ms=Clock().now_unix_ms() if now is None else now,
    )
    _show(decision, as_json=arguments.json)
    if store is not None:
        record_decision(store, decision)
    return 0 if decision.starts else 1


def _store(arguments: argparse.Namespace) -> ObjectStore:
    return store_of(load_settings(vars(arguments), environment=os.environ, directory=Path.cwd()))


def _restart(arguments: argparse.Namespace, rules: Rules) -> int:
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    store, job = store_of(settings), settings.job
    past = past_attempts(store, job_id=job, attempts_max=_attempts_max(settings))
    if not past.attempts:
        raise ConfigError(f"--job {job}: no attempt has ended in {store.url}; nothing to decide")
    decision = decide_after(
        past.attempts, rules.restart, job_id=job, now_unix_ms=Clock().now_unix_ms()
    )
    if arguments.annotations:
        _print_json(annotations_of(decision, past, rules, tier=arguments.tier))
    else:
        _show(decision, as_json=arguments.json)
    if past.running and not arguments.json and not arguments.annotations:
        print("A newer attempt has claimed the job since: it runs, or was lost.")
    if arguments.record:
        record_decision(store, decision)
    if arguments.slurm:
        print(_in_slurm(arguments, decision, past), file=sys.stderr)
    return 1 if decision.action is RestartAction.HOLD else 0


def _attempts_max(settings: Settings) -> int:
    settings.check(("attempts",))
    given = settings.given("attempts")
    return int(str(default_values()["attempts"] if given is None else given))


def _in_slurm(arguments: argparse.Namespace, decision: RestartDecided, past: Past) -> str:
    from drainfsm_adapters.slurm_requeue import SlurmFailedError, settle_waiting

    left_ms = _left_ms(decision, past)
    order = settle_waiting(
        arguments.slurm,
        hold=decision.action is not RestartAction.RESTART,
        start_in_s=-(-left_ms // 1_000),
        release=arguments.release,
    )
    try:
        return asyncio.run(order)
    except SlurmFailedError as error:
        raise DrainfsmError(f"--slurm {arguments.slurm}: {error}") from error


def _left_ms(decision: RestartDecided, past: Past) -> int:
    """Of the pause: it began when the attempt had ended."""
    return max(0, past.ended_unix_ms + decision.pause_ms - decision.at_unix_ms)


def annotations_of(
    decision: RestartDecided, past: Past, rules: Rules, *, tier: str | None
) -> dict[str, str]:
    """For a workload: what a priority controller has to know, in words that Kubernetes takes."""
    found = {
        f"{ANNOTATION}restart": str(decision.action),
        f"{ANNOTATION}restart-reason": decision.reason,
    }
    if decision.action is RestartAction.RESTART:
        found[f"{ANNOTATION}restart-not-before"] = _written(past.ended_unix_ms + decision.pause_ms)
    if past.running:
        protected_ms = round(rules.preemption.minimum_run_s * 1_000)
        found[f"{ANNOTATION}protected-until"] = _written(past.claimed_unix_ms + protected_ms)
    if tier is not None:
        victims = rules.preemption.victims_of(tier)
        found[f"{ANNOTATION}tier"] = tier
        found[f"{ANNOTATION}preempts"] = ",".join(victims)
    return found


def _written(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _show(decision: Decision, *, as_json: bool) -> None:
    if as_json:
        _print_json(decision)
    else:
        print("\n".join(printable(line, chars_max=4_000) for line in explain_decision(decision)))


def _print_json(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
