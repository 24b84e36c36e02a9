"""``drainfsm run``: a training job under an agent."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from drainfsm.cli.options import Parser, add_options, split_command
from drainfsm.errors import ConfigError
from drainfsm.runtime.config import RunConfig

USAGE = """run --job NAME --store URL_OR_PATH [--nats URL]
                    [--nnodes N --node-rank R --coordinator HOST:PORT]
                    [--source NAME …] [--grace SECONDS] [options] -- CMD…"""

EPILOG = """\
Exits with the job's own code, or 75 when the job drained and wants to be started again, or when the
store did not answer at its start."""


def parser() -> Parser:
    from drainfsm.cli.settings import default_values

    made = Parser("run", "Run a training job under an agent.", usage=USAGE, epilog=EPILOG)
    add_options(made, defaults=default_values())
    return made


def config_of(argv: Sequence[str]) -> RunConfig:
    """What the command line, the environment and the file say together.

    Raises:
        ConfigError: an option is unknown, missing or wrong.
    """
    from drainfsm.cli.settings import load_settings

    options, command = split_command(argv)
    arguments = parser().parse(options)
    if not command:
        raise ConfigError("run: no command; put it behind `--`: drainfsm run … -- python train.py")
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    return settings.run_config(command)


def main(argv: Sequence[str]) -> int:
    """Does not return once the agent has run: its exit must wait for nothing that may hang."""
    config = config_of(argv)
    _warn_of_secrets(argv)
    beside = _metrics(config) if config.metrics and config.node_rank == 0 else None
    from drainfsm.runtime.agent.process import run_process

    run_process(config, beside=beside)


def _metrics(config: RunConfig) -> Callable[[], None]:
    """What starts the answers to ``GET /metrics``, beside the agent."""
    try:
        from drainfsm.views.agent_metrics import AgentMetrics
    except ImportError as error:
        raise ConfigError(
            "metrics: prometheus-client is missing: install it with "
            "`pip install 'drainfsm[metrics]'`, or leave --metrics out"
        ) from error
    return AgentMetrics(config).start


def _warn_of_secrets(argv: Sequence[str]) -> None:
    """Every user of the machine can read a command line."""
    options, _ = split_command(argv)
    given = dict(pairwise([*options, ""]))
    given |= dict(option.split("=", 1) for option in options if "=" in option)
    password = "@" in given.get("--nats", "").partition("://")[2]
    for flag, is_secret in (("--token", "--token" in given), ("--nats", password)):
        if is_secret:
            variable = f"DRAINFSM_{flag.removeprefix('--').upper()}"
            warning = (
                f"drainfsm: {flag} holds a secret that `ps` shows to everybody: use {variable}"
            )
            with contextlib.suppress(OSError):
                print(warning, file=sys.stderr, flush=True)
