"""Everything that ``drainfsm run`` can be told. ``cli/options.py`` fills it in."""

from __future__ import annotations

from pathlib import Path

import msgspec

from drainfsm.core.budget import Allowances
from drainfsm.core.orders import CheckpointSettings


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent's configuration. Durations are in the unit that the name says."""

    job: str
    """Name of the job: letters, digits, ``_`` and ``-``; outlives restarts."""

    store: str
    """Root of the checkpoint store: a path, ``file://`` or an object store URL."""

    command: tuple[str, ...]
    nats: str = ""
    """URL of the NATS server; empty: an embedded one, started by node 0."""

    nnodes: int = 1
    node_rank: int = 0
    coordinator: str = ""
    """HOST:PORT of node 0's coordinator; empty only with one node (a free loopback port)."""

    token: str = ""
    """Job token, the same on every node; required with more than one."""

    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    source: tuple[str, ...] = ()
    """Notice sources besides signals and ``drainfsm notify``, by entry point name."""

    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
    """Signals that are taken as a notice."""

    grace_s: float = 30.0
    """Deadline of a notice that states none, counted from its receipt."""

    cordon: str = ""
    """Name of the cordon, by entry point; empty: none is configured."""

    accumulation: str = "finish"
    state_dir: Path
    """Journals, the embedded server's data."""

    heartbeat_s: float = 2.0
    silence_s: float = 20.0
    """A node that says nothing for so long is lost."""

    attach_s: float = 600.0
    """How long ranks may take to attach before the attempt reports them."""

    allowances: Allowances = Allowances()
    checkpoint: CheckpointSettings = CheckpointSettings()
