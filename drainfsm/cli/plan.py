"""``drainfsm plan``: how long a grace window must be."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drainfsm.cli.logs import add_log_options, read_history, report_damage
from drainfsm.cli.options import ALLOWANCES, Parser, positive_number
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.cli.stores import store_of
from drainfsm.core.budget import Allowances, Sample
from drainfsm.errors import ConfigError
from drainfsm.policy.interval import Interval, interval
from drainfsm.policy.plan import plan
from drainfsm.policy.plan_text import plan_text
from drainfsm.policy.sizing import DTYPE_BYTES, OPTIMIZER_COPIES, model_bytes
from drainfsm.views.history import History

USAGE = """plan (--bytes SIZE | --params N [--dtype T] [--optimizer O] | --store STORE | --job NAME)
                     [--nodes N] [--node-bandwidth RATE | --bandwidth RATE]
                     [--window SECONDS] [--mtbf HOURS] [--save-cost SECONDS] [--json]"""

EPILOG = """\
The window must be longer than handler + quiesce + (bytes / bandwidth + barrier) + commit + exit
margin + clock skew. The size comes from --bytes, a model (--params), the newest commit of
--store, or the log of --job; with a log, durations are bounds from the job's own saves, unless
a bandwidth is given. Sizes and rates: 420GB, 52.5GiB, 4e9, 4GB/s. Allowances: as for `run`."""

QUANTITY_MAX = 1e18
"""An exabyte."""

UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
MTBF_FROM = ("drained", "lost", "failed")


def parser() -> Parser:
    made = Parser("plan", "Size a grace window.", usage=USAGE, epilog=EPILOG)
    add_log_options(made, "store", *(option.key for option in ALLOWANCES))
    made.add_argument("--bytes", metavar="SIZE", help="of one checkpoint, all ranks together")
    made.add_argument("--params", metavar="N", help="parameters of the model, e.g. 70e9")
    made.add_argument("--dtype", metavar="T", default="fp16", help=f"{', '.join(DTYPE_BYTES)}")
    made.add_argument("--optimizer", metavar="O", default="adamw", help=", ".join(OPTIMIZER_COPIES))
    made.add_argument("--optimizer-dtype", metavar="T", help="of its state (default: --dtype)")
    made.add_argument("--master-weights", action="store_true", help="fp32 copies are saved as well")
    made.add_argument("--nodes", metavar="N", type=int, default=1, help="that write side by side")
    made.add_argument("--node-bandwidth", metavar="RATE", help="durable bytes per second and node")
    made.add_argument("--bandwidth", metavar="RATE", help="of the whole job")
    made.add_argument(
        "--window",
        metavar="SECONDS",
        type=positive_number,
        action="append",
        default=[],
        help="how likely does a save fit it? Needs a log; may be repeated",
    )
    made.add_argument(
        "--mtbf", metavar="HOURS", type=positive_number, help="mean time between losses"
    )
    made.add_argument(
        "--save-cost", metavar="SECONDS", type=positive_number, help="that one save holds up"
    )
    made.add_argument("--json", action="store_true", help="one JSON object")
    return made


def main(argv: Sequence[str]) -> int:
    arguments = parser().parse(argv)
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    history = _history(arguments)
    samples = _samples(history)
    allowances = settings.allowances
    try:
        save_bytes = _bytes(arguments, settings, samples)
    except ConfigError:
        if history is not None:
            report_damage(history)  # it may be why
        raise
    try:
        made = plan(
            save_bytes=save_bytes,
            allowances=allowances,
            node_count=arguments.nodes,
            bytes_per_s=_bandwidth(arguments),
            samples=samples,
            windows_ms=[round(window * 1_000) for window in arguments.window],
            interval=_interval(arguments, history, samples, save_bytes, allowances),
        )
    except ValueError as error:
        raise ConfigError(f"plan: {error}") from error
    if arguments.window and not made.windows:
        raise ConfigError("--window: no log of comparable saves (give --job, --file or --nats)")
    if arguments.json:
        sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    else:
        for line in plan_text(made):
            print(line)
    return 0 if history is None else report_damage(history)


def quantity(option: str, text: str) -> int:
    """``420GB``, ``52.5 GiB``, ``4GB/s``, ``70e9`` or ``1_000``: a whole number, more than zero.

    Raises:
        ConfigError: anything else.
    """
    found = re.fullmatch(
        r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+]?[0-9]{1,2})?)\s*([kKmMgGtTpP]?)(i?)[bB]?(?:/s)?\s*",
        text,
    )
    number = float(found[1].replace("_", "")) if found else 0.0
    unit = 1_024.0 if found and found[3] else 1_000.0
    number *= math.pow(unit, UNITS[found[2].lower()]) if found else 0
    if not 0 < number <= QUANTITY_MAX:
        raise ConfigError(f"{option} {text}: not a size such as 420GB, 52.5GiB or 4e9")
    return max(1, round(number))


def _history(arguments: argparse.Namespace) -> History | None:
    if arguments.job is None and arguments.file is None and arguments.nats is None:
        return None
    if arguments.store is not None and arguments.file is None and arguments.nats is None:
        try:
            return read_history(arguments)
        except ConfigError:
            return None  # the store says how large the checkpoint is, and there is no log
    return read_history(arguments)


def _samples(history: History | None) -> tuple[Sample, ...]:
    if history is None:
        return ()
    from drainfsm.views.attempts import see
    from drainfsm.views.replay import replay_job

    return tuple(sample for replay in replay_job(history.logs) for sample in see(replay).samples)


def _bytes(arguments: argparse.Namespace, settings: Settings, samples: Sequence[Sample]) -> int:
    if arguments.bytes is not None and arguments.params is not None:
        raise ConfigError("give --bytes or --params, not both")
    if arguments.bytes is not None:
        return quantity("--bytes", arguments.bytes)
    if arguments.params is not None:
        return model_bytes(
            params=quantity("--params", arguments.params),
            dtype=arguments.dtype,
            optimizer=arguments.optimizer,
            optimizer_dtype=arguments.optimizer_dtype,
            master_weights=arguments.master_weights,
        )
    if arguments.store is not None:
        from drainfsm.store.commits import CommitLog

        commit = CommitLog(store_of(settings), job_id=settings.job).head().commit
        if commit is None:
            raise ConfigError("--store: nothing was ever committed there; give --bytes")
        return commit.total_bytes
    if samples:
        return samples[-1].save_bytes
    raise ConfigError("plan: how large is the checkpoint? Give --bytes, --params, --store or --job")


def _bandwidth(arguments: argparse.Namespace) -> int | None:
    if arguments.bandwidth is not None and arguments.node_bandwidth is not None:
        raise ConfigError("give --bandwidth (of the whole job) or --node-bandwidth, not both")
    if arguments.bandwidth is not None:
        return quantity("--bandwidth", arguments.bandwidth)
    if arguments.node_bandwidth is not None:
        nodes: int = arguments.nodes
        return quantity("--node-bandwidth", arguments.node_bandwidth) * nodes
    return None


def _interval(
    arguments: argparse.Namespace,
    history: History | None,
    samples: Sequence[Sample],
    save_bytes: int,
    allowances: Allowances,
) -> Interval | None:
    """None: it is not known how often the job is lost."""
    mtbf_ms = None if arguments.mtbf is None else round(arguments.mtbf * 3_600_000)
    if mtbf_ms is None and history is not None:
        mtbf_ms = _mtbf_ms(history)
    if mtbf_ms is None:
        if arguments.save_cost is not None:
            raise ConfigError("--save-cost: how often is the job lost? Give --mtbf HOURS")
        return None
    cost_ms = None if arguments.save_cost is None else round(arguments.save_cost * 1_000)
    if cost_ms is None and samples:
        cost_ms = sorted(sample.durable_ms for sample in samples)[len(samples) // 2]
    if cost_ms is None:
        bandwidth = _bandwidth(arguments) or allowances.store_bytes_per_s
        cost_ms = save_bytes * 1_000 // bandwidth + allowances.barrier_ms
    return interval(save_cost_ms=max(1, cost_ms), mtbf_ms=mtbf_ms)


def _mtbf_ms(history: History) -> int | None:
    from drainfsm.views.report import report_jobs

    attempts = [attempt for job in report_jobs(history.logs).jobs for attempt in job.attempts]
    ran_ms = sum(
        one.ended_unix_ms - one.started_unix_ms
        for one in attempts
        if one.ended_unix_ms is not None and one.started_unix_ms is not None
    )
    losses = sum(one.ending.value in MTBF_FROM for one in attempts)
    return ran_ms // losses if losses and ran_ms > 0 else None
