"""``drainfsm run``: a training job under an agent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from drainfsm.cli.options import Parser, add_options
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
        ConfigError: an option is unknown or missing, or will not do.
    """
    from drainfsm.cli.settings import load_settings

    options, command = list(argv), None
    if "--" in options:
        at = options.index("--")
        options, command = options[:at], options[at + 1 :]
    arguments = parser().parse(options)
    if not command:
        raise ConfigError("run: no command; put it behind `--`: drainfsm run … -- python train.py")
    settings = load_settings(vars(arguments), environment=os.environ, directory=Path.cwd())
    return settings.run_config(command)


def main(argv: Sequence[str]) -> int:
    """Does not return once the agent has run: its exit must wait for nothing that may hang."""
    config = config_of(argv)
    from drainfsm.runtime.agent.process import run_process

    run_process(config)
