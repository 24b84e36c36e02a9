"""``[adapters.slurm]``, and which run of which job this is."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import msgspec

from drainfsm.errors import ConfigError

SOURCE = "slurm"
REQUEUE = ("scontrol", "stay", "none")
NODE_DRAIN = ("leave", "ignore")


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds."""

    poll_s: float = 0.0
    """Between two looks at the job; 0: 30 s, or a fifth of the partition's GraceTime if less."""

    nodes_s: float = 60.0
    """Between two looks at the state of its nodes; 0: never."""

    timeout_s: float = 5.0
    """For one command; less if less time is left."""

    unknown_s: float = 60.0
    """A controller that has been silent for this long is reported."""

    warning_s: float = 120.0
    """The N of ``--signal=…@N``."""

    warning_signal: str = "SIGUSR1"
    """The signal of ``--signal=…``: the first one, that long (and a minute) before the end, is the
    warning. Empty: none was asked for, so somebody sent every signal on purpose."""

    requeue: str = "scontrol"
    """Last act of a job that wants to come back: ``scontrol`` requeue; ``stay``, to be killed and
    requeued by the preemption; ``none``."""

    resubmit: str = ""
    """Shell command that submits the job again where requeue is off."""

    node_drain: str = "leave"
    """What follows from a node of the job being drained: ``leave``, or ``ignore``."""

    scontrol: str = "scontrol"
    json: bool = False
    """Ask for JSON (Slurm 23.02 and newer) instead of text."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A requeue keeps the job id: only with the restart count does it name one run."""

    job_id: str
    """The record's: slurmctld gives every task of an array a number of its own."""

    own_id: str
    """For orders. The last task of an array has the number of the array, and an order for that goes
    to every task: there it is ``ARRAY_TASK``."""

    restarts: int
    node: str = ""
    job_name: str = ""

    @property
    def name(self) -> str:
        return f"{self.job_id}.{self.restarts}"


def run_of(environment: Mapping[str, str]) -> Run:
    """Raises: ConfigError: this is not a process of a Slurm job."""
    job_id = environment.get("SLURM_JOB_ID", "")
    restarts = environment.get("SLURM_RESTART_COUNT", "") or "0"
    if not job_id.isdecimal() or not restarts.isdecimal():
        raise ConfigError(
            "slurm: no SLURM_JOB_ID in the environment: start `drainfsm run` inside a job "
            "(in a container, pass the SLURM_ variables on)"
        )
    array, task = (environment.get(f"SLURM_ARRAY_{part}_ID", "") for part in ("JOB", "TASK"))
    return Run(
        job_id=job_id,
        own_id=f"{array}_{task}" if array and task else job_id,
        restarts=int(restarts),
        node=environment.get("SLURMD_NODENAME", ""),
        job_name=environment.get("SLURM_JOB_NAME", ""),
    )


def nodes_of_run(environment: Mapping[str, str]) -> str:
    """Its host lists, those of every component of a heterogeneous job; empty: not known."""
    lists = [environment.get("SLURM_JOB_NODELIST", "")]
    while more := environment.get(f"SLURM_JOB_NODELIST_HET_GROUP_{len(lists) - 1}"):
        lists.append(more)
    return ",".join(filter(None, dict.fromkeys(lists)))


def slurm_options(options: Mapping[str, str]) -> SlurmOptions:
    """Raises: ConfigError: an unknown key, or an invalid value; names it."""
    try:
        loaded = msgspec.convert(dict(options), SlurmOptions, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(sorted(SlurmOptions.__struct_fields__))
        raise ConfigError(f"[adapters.slurm] {error} (known keys: {known})") from error
    for name, choices in (("requeue", REQUEUE), ("node_drain", NODE_DRAIN)):
        if getattr(loaded, name) not in choices:
            given = getattr(loaded, name)
            raise ConfigError(f"[adapters.slurm] {name} = {given!r}: take {', '.join(choices)}")
    known_signal = loaded.warning_signal in (*signal.Signals.__members__, "")
    if not known_signal:
        given = loaded.warning_signal
        raise ConfigError(f"[adapters.slurm] warning_signal = {given!r} is not a signal")
    for name in ("poll_s", "nodes_s", "warning_s"):
        if getattr(loaded, name) < 0:
            raise ConfigError(f"[adapters.slurm] {name}: must not be negative")
    for name in ("timeout_s", "unknown_s"):
        if not getattr(loaded, name) > 0:
            raise ConfigError(f"[adapters.slurm] {name}: must be above 0")
    return loaded
