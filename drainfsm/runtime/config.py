"""Every setting of ``drainfsm run``. ``cli/settings.py`` fills it in."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from drainfsm.core.budget import Allowances
from drainfsm.core.orders import CapacitySettings, CheckpointSettings
from drainfsm.core.words import RESTORE_CHECKS, Accumulation, Checksum, OnRefused
from drainfsm.errors import ConfigError

JOB_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""One token of a NATS subject, and one directory."""

RANK_VARIABLES = frozenset(
    {"DRAINFSM_SOCKET", "DRAINFSM_EPOCH", "DRAINFSM_SIGNALS", "DRAINFSM_OUTSIDE"}
)
"""Environment variables that an agent sets for its ranks: known names that are not options. Each
one that the agent sets is listed, or a ``drainfsm`` command that the job runs would take it for a
typo."""


SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""A notice, where nothing else is chosen."""


def secret_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables of an agent that it hides from all others."""
    held = [name for name in ("DRAINFSM_TOKEN",) if name in environment]
    nats = environment.get("DRAINFSM_NATS", "")
    return [*held, "DRAINFSM_NATS"] if "@" in nats else held


GRACE_S_MAX = 366 * 24 * 3_600
NODES_MAX = 65_536
LOG_FORMATS = ("text", "json")


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent's configuration. Durations are in the unit that the name says."""

    job: str
    """Name of the job: letters, digits, ``_`` and ``-``; outlives restarts."""

    store: str
    """Root of the checkpoint store: a path, ``file://`` or an object store URL."""

    create_store: bool = False
    """Create the store with its parents; otherwise its parent must exist."""

    command: tuple[str, ...]
    nats: str = ""
    """URL of the NATS server; empty: an embedded one, started by node 0."""

    nats_user: str = ""
    nats_password_file: str = ""
    nats_token_file: str = ""
    nats_nkey: str = ""
    nats_creds: str = ""
    nats_tlscert: str = ""
    nats_tlskey: str = ""
    nats_tlsca: str = ""
    nats_inbox_prefix: str = ""
    """What is shown to the server: ``drainfsm.log.server`` says it of each."""

    require_durable_log: bool = False
    """Node 0 does not start where the server may lose what it has acknowledged."""

    nnodes: int = 1
    node_rank: int = 0
    coordinator: str = ""
    """HOST:PORT of node 0's coordinator; empty only with one node (a free loopback port)."""

    token: str = ""
    """Job token, the same on every node; empty: a random one that is kept in the store."""

    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    source: tuple[str, ...] = ()
    """Notice sources besides signals and ``drainfsm notify``, by entry point name."""

    signals: tuple[str, ...] = SIGNALS
    """Signals that are taken as a notice; SIGHUP only if it is not ignored (``nohup``)."""

    grace_s: float = 30.0
    """Deadline of a notice that states none, counted from its receipt."""

    cordon: str = ""
    """Name of the cordon, by entry point; empty: none is configured."""

    accumulation: Accumulation = Accumulation.FINISH
    state_dir: Path
    """Journals, the embedded server's data."""

    heartbeat_s: float = 2.0
    silence_s: float = 20.0
    """A node that is silent for this long is lost."""

    leftover_s: float = 2.0
    """For processes that the command left running (an upload, say) when it ended by itself."""

    attach_s: float = 600.0
    """How long ranks may take to attach before the attempt reports them."""

    attempts_max: int = 5
    """This many in a row may leave on the same checkpoint; then the job is held. 0: no limit."""

    job_timeout_s: float = 0.0
    """An attempt drains itself after this long; 0: never."""

    log_format: str = "text"
    """Format of the agent's messages on stderr: ``text``, or ``json``, one object a line."""

    metrics: str = ""
    """HOST:PORT where node 0 answers ``GET /metrics``; empty: nowhere."""

    allowances: Allowances = Allowances()
    checkpoint: CheckpointSettings = CheckpointSettings()
    capacity: CapacitySettings = CapacitySettings()
    adapters: dict[str, dict[str, str]] = {}
    """By adapter: its ``AdapterContext.options``."""

    def __post_init__(self) -> None:
        """Refuse what cannot work before anything is started.

        Raises:
            ConfigError: names the option.
        """
        for option, problem in _problems(self):
            raise ConfigError(f"{option}: {problem}")


def check_job_name(job: str) -> None:
    """Raises: ConfigError: the name would not do as a NATS subject token and a directory."""
    if not JOB_NAME.fullmatch(job):
        raise ConfigError(
            f"job: {job!r} is not a job name; use 1 to 64 letters, digits, '_' and '-'"
        )


def _problems(config: RunConfig) -> Iterator[tuple[str, str]]:
    """What is wrong, as option and sentence."""
    check_job_name(config.job)
    if not config.store:
        yield "store", "is empty; give a directory or an object store URL"
    if not config.command:
        yield "command", "is empty; put the command to run behind `--`"
    yield from _node_problems(config)
    if config.require_durable_log and not config.nats:
        yield "require_durable_log", "needs nats: the embedded server's disk goes with its machine"
    if not config.nats:
        for name in config.__struct_fields__:
            if name.startswith("nats_") and getattr(config, name):
                yield name, "is for a NATS server: name one with nats"
    yield from _time_problems(config)
    for name in config.signals:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            yield "signal", f"{name!r} is not a signal that can be caught"
    saving = config.checkpoint
    yield from _choice("accumulation", config.accumulation, tuple(Accumulation))
    yield from _choice("log_format", config.log_format, LOG_FORMATS)
    yield from _choice("checksum", saving.checksum, tuple(Checksum))
    yield from _choice("verify", saving.verify, RESTORE_CHECKS)
    yield from _choice("on_refused", saving.on_refused, tuple(OnRefused))


def _choice(option: str, word: str, choices: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if word not in choices:
        yield option, f"'{word}' is not one of {', '.join(choices)}"


def _node_problems(config: RunConfig) -> Iterator[tuple[str, str]]:
    if not 1 <= config.nnodes <= NODES_MAX:
        yield "nnodes", f"{config.nnodes} is not in 1 to {NODES_MAX}"
    if not 0 <= config.node_rank < config.nnodes:
        yield "node_rank", f"{config.node_rank} is not in 0 to nnodes - 1 = {config.nnodes - 1}"
    if config.nnodes > 1 and not config.coordinator:
        yield "coordinator", "is needed with more than one node: HOST:PORT of node 0"
    for option in ("coordinator", "metrics"):
        address = getattr(config, option)
        host, _, port = address.rpartition(":")
        if address and not (host and port.isdecimal() and 1 <= int(port) <= 65_535):
            yield option, f"{address!r} is not HOST:PORT"
    if bool(config.tls_cert) != bool(config.tls_key):
        yield "tls_cert", "tls_cert and tls_key belong together; one of them is missing"


def _time_problems(config: RunConfig) -> Iterator[tuple[str, str]]:
    if not 0 < config.grace_s <= GRACE_S_MAX:
        yield "grace", f"{config.grace_s:g} s is not more than 0 s and at most a year"
    if not config.heartbeat_s > 0:  # and no NaN
        yield "heartbeat", f"{config.heartbeat_s:g} s is not more than 0 s"
    if not config.silence_s > config.heartbeat_s:
        heard_every = f"the heartbeat of {config.heartbeat_s:g} s"
        yield "silence", f"{config.silence_s:g} s is not more than {heard_every}: all would be lost"
    if not 0 <= config.leftover_s <= GRACE_S_MAX:
        yield "leftover", f"{config.leftover_s:g} s is not in 0 s to a year"
    if not config.attach_s > 0:
        yield "attach", f"{config.attach_s:g} s is not more than 0 s"
    if config.attempts_max < 0:
        yield "attempts", f"{config.attempts_max} is negative; 0: any number"
    if not 0 <= config.job_timeout_s <= GRACE_S_MAX:
        yield "job_timeout", f"{config.job_timeout_s:g} s is not in 0 s (never) to a year"
    for name, value in msgspec.structs.asdict(config.allowances).items():
        if value < 0 or (name == "store_bytes_per_s" and value == 0):
            yield name, f"{value} is too small"
    if config.capacity.accelerators < 0:
        yield "accelerators", f"{config.capacity.accelerators} is negative; 0: count them"
    for name in ("every_steps", "every_s"):
        value = getattr(config.checkpoint, name)
        if not value >= 0:
            yield name, f"{value} is negative; 0 turns it off"
