"""The options that can be given on the command line, in the environment and in drainfsm.toml.

One table; the same name everywhere: ``node_rank`` is ``--node-rank``, ``DRAINFSM_NODE_RANK`` and
the key ``node_rank``. ``cli/settings.py`` decides which of them wins.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from drainfsm.errors import ConfigError

PREFIX = "DRAINFSM_"
NUMBER_MAX = 3e10


class Option(NamedTuple):
    """One row. ``field``: its name in ``RunConfig``, where that differs from the key."""

    key: str
    metavar: str
    help: str
    table: str = ""
    """The table of drainfsm.toml, and the part of ``RunConfig``, that it belongs to."""

    field: str = ""
    shape: str = "value"
    """``value``, ``switch`` (the flag alone means true), ``list`` (``a,b``; the flag may be
    repeated) or ``mapping`` (``dp=4,tp=2``)."""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.key.upper()

    @property
    def attribute(self) -> str:
        return self.field or self.key


NATS_ACCESS: tuple[Option, ...] = tuple(
    Option(f"nats_{key}", metavar, text)
    for key, metavar, text in (
        ("user", "NAME", "of the NATS server"),
        ("password_file", "FILE", "the user's password"),
        ("token_file", "FILE", "a token instead of user and password"),
        ("nkey", "FILE", "the user's nkey seed"),
        ("creds", "FILE", "the user's JWT and seed"),
        ("tlscert", "FILE", "certificate that is shown to the NATS server"),
        ("tlskey", "FILE", "its private key"),
        ("tlsca", "FILE", "authority that the NATS server's certificate is checked against"),
        ("inbox_prefix", "SUBJECT", "of the subjects that answers come to"),
    )
)
"""Named as the tools of NATS name them. Secrets stand in files: a command line is read by all."""

NATS_KEYS = ("nats", *(option.key for option in NATS_ACCESS))

RUN_OPTIONS: tuple[Option, ...] = (
    Option("job", "NAME", "name of the job; outlives restarts"),
    Option("store", "URL_OR_PATH", "checkpoint store: a directory, s3://, gs:// or az://"),
    Option(
        "create_store",
        "BOOL",
        "create the store with its parents; without, its parent must exist",
        shape="switch",
    ),
    Option("nats", "URL", "NATS server for the event log; none: an embedded one"),
    *NATS_ACCESS,
    Option(
        "require_durable_log",
        "BOOL",
        "do not start where the NATS server may lose what it has acknowledged",
        shape="switch",
    ),
    Option("nnodes", "N", "number of agents that form the job"),
    Option("node_rank", "R", "number of this agent, from 0"),
    Option("coordinator", "HOST:PORT", "where node 0 coordinates; needed with several nodes"),
    Option("token", "TEXT", "job token, the same on every node; better in DRAINFSM_TOKEN"),
    Option("tls_cert", "FILE", "certificate for the control traffic between agents"),
    Option("tls_key", "FILE", "its private key"),
    Option("tls_ca", "FILE", "authority that the other agents' certificates are checked against"),
    Option("source", "NAME", "notice source besides signals; may be repeated", shape="list"),
    Option(
        "signal",
        "NAME",
        "signal that is taken as a notice; may be repeated",
        field="signals",
        shape="list",
    ),
    Option("grace", "SECONDS", "deadline of a notice that states none", field="grace_s"),
    Option("cordon", "NAME", "adapter that marks the leaving nodes unschedulable"),
    Option("accumulation", "HOW", "partial gradient accumulation: finish, discard"),
    Option("state_dir", "DIR", "journals and the embedded server's data"),
    Option("heartbeat", "SECONDS", "between two signs of life of an agent", field="heartbeat_s"),
    Option("silence", "SECONDS", "after which a silent agent is lost", field="silence_s"),
    Option(
        "attach",
        "SECONDS",
        "in which every node must come, and every rank attach",
        field="attach_s",
    ),
    Option(
        "leftover",
        "SECONDS",
        "for processes that outlive the command; then they are killed",
        field="leftover_s",
    ),
    Option(
        "attempts",
        "N",
        "in a row that may leave on one checkpoint, before the job is held; 0: any number",
        field="attempts_max",
    ),
    Option(
        "job_timeout",
        "SECONDS",
        "after which the attempt drains itself; 0: never",
        field="job_timeout_s",
    ),
    Option("log_format", "FORMAT", "of the lines on stderr: text, json"),
    Option("metrics", "HOST:PORT", "where node 0 answers GET /metrics; none: nowhere"),
)

ALLOWANCES: tuple[Option, ...] = tuple(
    Option(key, metavar, text, table="allowances")
    for key, metavar, text in (
        ("handler_ms", "MS", "from the platform's notice to the decision"),
        (
            "quiesce_ms",
            "MS",
            "for the ranks to reach the stop step; more where their steps are longer",
        ),
        ("commit_ms", "MS", "verify the entries, write the manifest, create the commit"),
        ("exit_margin_ms", "MS", "from the order to leave to no process left"),
        ("clock_skew_ms", "MS", "largest difference between the deadline's clock and ours"),
        ("store_bytes_per_s", "BYTES", "assumed durable write bandwidth before a save was seen"),
        ("barrier_ms", "MS", "fixed cost of a save"),
        ("schedule_slack_ms", "MS", "how early before the latest safe start a SOFT drain begins"),
    )
)

CHECKPOINT: tuple[Option, ...] = tuple(
    Option(key, metavar, text, table="checkpoint", shape=shape)
    for key, metavar, text, shape in (
        ("every_steps", "N", "periodic save after every N optimizer steps; 0: off", "value"),
        ("every_s", "SECONDS", "periodic save after this many seconds; 0: off", "value"),
        ("checksum", "ALGORITHM", "of every file: xxh3_128, sha256, sha256_tree", "value"),
        ("verify", "WHAT", "what a restore checks: sizes, checksums", "value"),
        ("on_refused", "WHAT", "if the checkpoint is damaged: fail, fallback to an older", "value"),
        ("reshard", "BOOL", "restore what another number of ranks has saved", "switch"),
        ("asynchronous", "BOOL", "training goes on while a periodic save is written", "switch"),
        ("final", "BOOL", "save the last step of a loop that ended by itself", "switch"),
        ("rewind", "BOOL", "the job may resume before its checkpoint", "switch"),
        ("layout", "KEY=N,…", "parallel layout, e.g. dp=4,tp=2", "mapping"),
        ("digests", "KEY=TEXT,…", "identity of container, dataset and config", "mapping"),
    )
)

CAPACITY: tuple[Option, ...] = (
    Option("accelerators", "N", "of the whole job, for its replacement; 0: count", "capacity"),
    Option("topology", "TEXT", "that a replacement must have", "capacity"),
)

OPTIONS: tuple[Option, ...] = (*RUN_OPTIONS, *ALLOWANCES, *CHECKPOINT, *CAPACITY)
BY_KEY = {option.key: option for option in OPTIONS}
TABLES = ("allowances", "checkpoint", "capacity", "adapters")


class Parser(argparse.ArgumentParser):
    """Errors become ``ConfigError``; a mistyped option is answered with the nearest valid one."""

    def __init__(
        self, command: str, description: str, *, usage: str = "", epilog: str = ""
    ) -> None:
        super().__init__(
            prog=f"drainfsm {command}".rstrip(),
            usage=f"drainfsm {usage}" if usage else None,
            description=description,
            epilog=epilog or None,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Raises: ConfigError: something is unknown, missing or of the wrong form."""
        known, extra = self.parse_known_args(argv)
        if extra:
            flags = [flag for action in self._actions for flag in action.option_strings]
            name = extra[0].split("=", 1)[0]
            self.error(f"{extra[0]} is not known{nearest(name, flags)}")
        return known

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def positive_number(text: str) -> float:
    """The type of an argument, seconds for one: less than a thousand years of them."""
    number = float(text)
    if not 0 < number < NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 and less than {NUMBER_MAX:g}")
    return number


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, and the command behind ``--``; empty: there is none."""
    options = list(argv)
    if "--" not in options:
        return options, []
    at = options.index("--")
    return options[:at], options[at + 1 :]


def nearest(name: str, valid: Sequence[str]) -> str:
    """``; did you mean …?`` where something valid is close to ``name``, else nothing."""
    close = get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def add_options(
    parser: argparse.ArgumentParser,
    keys: Sequence[str] | None = None,
    *,
    defaults: Mapping[str, object] | None = None,
) -> None:
    """The rows with these keys (all of them), as flags. Values stay text; ``None``: not given.

    ``--config`` is added: it says where the file is. ``defaults`` are shown in the help.
    """
    parser.add_argument("--config", metavar="FILE", help="instead of ./drainfsm.toml")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS if keys is None else [BY_KEY[key] for key in keys]:
        title = f"[{option.table}] of drainfsm.toml" if option.table else "the job"
        if option in NATS_ACCESS:
            title = "what is shown to the NATS server"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        default = (defaults or {}).get(option.key)
        shown = f" (default: {default})" if default not in (None, "") else ""
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if option.shape == "switch" else {}
        groups[title].add_argument(
            option.flag,
            metavar=option.metavar,
            help=(option.help + shown).replace("%", "%%"),
            action="append" if option.shape == "list" else "store",
            **alone,
        )
