"""Which rank this process is: by the variables of torchrun, of MPI, or of Slurm.

An agent may itself have been started by mpirun or srun, and its job inherits their variables. Those
say which process the agent is, so the agent names them, and they do not count here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from drainfsm.errors import ConfigError
from drainfsm.runtime.wire.environment import OUTSIDE_VARIABLE


class Placement(NamedTuple):
    """None: not known."""

    rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None


class _Launcher(NamedTuple):
    rank: str
    world_size: str
    local_world_size: str
    start: tuple[str, ...]
    """What tells one start of it from another, besides the numbers."""

    @property
    def variables(self) -> tuple[str, ...]:
        return (self.rank, self.world_size, self.local_world_size, *self.start)


TORCHRUN = _Launcher("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ())
"""And accelerate, deepspeed, composer, Kubeflow: whoever writes these means the rank."""

OTHERS = (
    _Launcher(  # Open MPI, PRRTE
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
    ),
    _Launcher(  # MVAPICH
        "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", ("PMI_ID",)
    ),
    _Launcher(
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ("PMI_FD", "PMI_PORT")
    ),  # MPICH, Intel MPI
    _Launcher(  # srun; how many are on a node is not said in one number
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", ("SLURM_STEP_ID",)
    ),
)


def placement_of(environ: Mapping[str, str]) -> Placement:
    """As the launcher says.

    Raises:
        ConfigError: a variable is not a number.
    """
    outside = _outside(environ)
    if TORCHRUN.rank in environ:
        return _read(TORCHRUN, environ)
    for launcher in OTHERS:
        ours = {name: environ[name] for name in launcher.variables if name in environ}
        if launcher.rank in ours and launcher.world_size in ours and not ours.items() <= outside:
            return _read(launcher, environ)
    return _read(TORCHRUN, environ)


def placed_outside(environ: Mapping[str, str]) -> str:
    """What an agent tells its job about the variables by which it was itself started."""
    names = (name for launcher in OTHERS for name in launcher.variables if name in environ)
    return ";".join(f"{name}={environ[name]}" for name in names)


def _outside(environ: Mapping[str, str]) -> set[tuple[str, str]]:
    return set(_pairs(environ.get(OUTSIDE_VARIABLE, "")))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        yield name, value


def _read(launcher: _Launcher, environ: Mapping[str, str]) -> Placement:
    return Placement(
        rank=_number(environ, launcher.rank),
        world_size=_number(environ, launcher.world_size),
        local_world_size=_number(environ, launcher.local_world_size),
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"environment variable {name} is {text!r}, not a number") from error
