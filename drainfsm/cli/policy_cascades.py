"""``drainfsm policy cascades``: who evicts whom, and how much of the time that costs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.logs import read_history, report_damage
from drainfsm.cli.settings import load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core import events as e
from drainfsm.core.text import printable, span
from drainfsm.policy.cascade import Times, cascades, evictions_in
from drainfsm.policy.decisions import read_decisions, record_decision
from drainfsm.policy.events import CascadeDetected, Eviction
from drainfsm.policy.policy_text import explain_decision
from drainfsm.policy.rules import CascadeRules
from drainfsm.views.attempts import Seen, see
from drainfsm.views.history import History
from drainfsm.views.jobs import jobs_of_file, jobs_of_state_dir, jobs_of_stream
from drainfsm.views.replay import replay_job


class Cascades(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    evictions: tuple[Eviction, ...]
    cascades: tuple[CascadeDetected, ...]
    times: dict[str, Times]
    """By job."""

    thrash_ratio: float | None
    """Over all jobs; None: nothing was trained."""

    thrashes: bool


def show_cascades(arguments: argparse.Namespace, rules: CascadeRules) -> int:
    damaged: list[History] = []
    found = find_cascades(_histories(arguments, damaged), rules)
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    else:
        print("\n".join(_metrics(found) if arguments.metrics else _text(found, rules)))
    if arguments.record:
        _record(arguments, found.cascades)
    code = max((report_damage(history) for history in damaged), default=0)
    return 1 if found.cascades or found.thrashes else code


def _record(arguments: argparse.Namespace, found: Sequence[CascadeDetected]) -> None:
    """Those that are not on record yet: the log is looked at again and again."""
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    store = store_of(settings)
    on_record = {one.chain for one in read_decisions(store) if isinstance(one, CascadeDetected)}
    for cascade in found:
        if cascade.chain not in on_record:
            record_decision(store, cascade)


def _histories(arguments: argparse.Namespace, damaged: list[History]) -> Iterator[History]:
    """One job after the other: that of ``--job``, or all of the file, the stream or the machine.
    Those that could not be read as a whole are added to ``damaged``."""
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    server = settings.nats
    if settings.given("job") is not None:
        histories = iter([read_history(arguments)])
    elif arguments.file is not None:
        histories = jobs_of_file(arguments.file)
    elif server:
        histories = jobs_of_stream(server)
    else:
        histories = jobs_of_state_dir(settings.state_dir)
    for history in histories:
        if history.damage:
            damaged.append(history)
        yield history


def find_cascades(histories: Iterable[History], rules: CascadeRules) -> Cascades:
    evictions: list[Eviction] = []
    times: dict[str, Times] = {}
    for history in histories:
        now_unix_ms = max((record.at_unix_ms for record in history.records), default=0)
        for replay in replay_job(history.logs):
            evictions += evictions_in(replay.counted)
            job = replay.final.job_id
            spent = times_of(see(replay), now_unix_ms=now_unix_ms)
            times[job] = times.get(job, Times()) + spent
    total = sum(times.values(), Times())
    return Cascades(
        evictions=tuple(sorted(evictions, key=lambda one: one.at_unix_ms)),
        cascades=tuple(cascades(evictions, rules)),
        times=times,
        thrash_ratio=total.thrash_ratio,
        thrashes=total.thrashes(rules),
    )


def times_of(seen: Seen, *, now_unix_ms: int) -> Times:
    """Of one attempt; ``now_unix_ms`` (the job's last record) counts for one that has no end on
    record."""
    started, healthy = seen.first(e.AttemptStarted), seen.first(e.HealthyStepReached)
    if started is None:
        return Times()
    over = seen.last(e.Exited, e.AttemptFinished, e.AttemptFenced, e.AttemptLost)
    end = over.at_unix_ms if over else seen.lines[-1].at_unix_ms if seen.replay.final.lost else None
    end = now_unix_ms if end is None else end
    drain = seen.last(e.NodeCordoned)  # from here on ranks are stopped
    cancelled = seen.last(e.DrainCancelled)
    if drain and cancelled and cancelled.position > drain.position:
        drain = None
    left = min(drain.at_unix_ms if drain else end, end)
    begun = min(healthy.at_unix_ms if healthy else left, left)
    return Times(
        starting_ms=max(0, begun - started.at_unix_ms),
        training_ms=left - begun,
        draining_ms=end - left,
    )


def _text(found: Cascades, rules: CascadeRules) -> Iterator[str]:
    yield f"{len(found.evictions)} evictions by a known job, {len(found.cascades)} in cascades"
    for cascade in found.cascades:
        yield from explain_decision(cascade)
    for job, times in sorted(found.times.items()):
        yield (
            f"{printable(job)}: {span(times.training_ms)} training, {span(times.starting_ms)} "
            f"starting, {span(times.draining_ms)} draining"
        )
    ratio = "nothing was trained" if found.thrash_ratio is None else f"{found.thrash_ratio:.2f}"
    verdict = "thrashing" if found.thrashes else "no thrashing"
    yield f"thrash ratio: {ratio} ({verdict}; more than {rules.thrash_max:g} is)"


METRICS: Sequence[tuple[str, str]] = (
    ("starting", "Time from the claim of an attempt to its first step."),
    ("training", "Time in which steps were made."),
    ("draining", "Time from the cordon to no process left."),
)


def _label(value: str) -> str:
    """As the text format writes the value of a label."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _metrics(found: Cascades) -> Iterator[str]:
    """Of one look at the log, as Prometheus' text format has it."""
    for name, text in METRICS:
        metric = f"drainfsm_policy_{name}_seconds"
        yield f"# HELP {metric} {text}"
        yield f"# TYPE {metric} gauge"
        for job, times in sorted(found.times.items()):
            yield f'{metric}{{job="{_label(job)}"}} {getattr(times, f"{name}_ms") / 1_000:g}'
    for name, text, value in (
        ("evictions", "Evictions by a job that is known.", len(found.evictions)),
        ("cascades", "Evictions that were the end of a cascade.", len(found.cascades)),
    ):
        yield f"# HELP drainfsm_policy_{name} {text}"
        yield f"# TYPE drainfsm_policy_{name} gauge"
        yield f"drainfsm_policy_{name} {value}"
    if found.thrash_ratio is not None:
        yield "# HELP drainfsm_policy_thrash_ratio Starting and draining over training."
        yield "# TYPE drainfsm_policy_thrash_ratio gauge"
        yield f"drainfsm_policy_thrash_ratio {found.thrash_ratio:g}"
