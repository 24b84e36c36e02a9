"""Launchers that are known to end, and their ranks with them, by a signal that the agent acts
on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

IGNORING = frozenset(
    {
        *("torchrun", "accelerate", "composer"),
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    }
)
"""Programs and modules that leave a signal ignored which was ignored when they started."""

HANDLING = frozenset(
    {
        *("deepspeed", "deepspeed.launcher.runner"),
        *("mpirun", "mpiexec", "orterun", "prterun", "prun"),
    }
)
"""Those that set up handlers of their own, by which they kill their ranks: mpirun after a second,
deepspeed after 30. They must not even be delivered. mpirun starts its ranks with nothing blocked,
the ranks of deepspeed let the signals through when they attach."""

BY_MPI = "--mpirun"
"""Options by which accelerate starts an mpirun."""

LOOKED_AT_MAX = 8
"""Words of the command among which the launcher's name is looked for."""


def is_launcher(command: Sequence[str]) -> bool:
    """The command is one, or runs one by way of a program that becomes it (``env``, ``nice``).

    A launcher has to outlive a signal to the whole process group, so it is started with the signals
    of a notice ignored. A script that calls it is not: everything that the script starts would
    ignore them, too, and could not be ended by it any more.
    """
    return not _named(command).isdisjoint(IGNORING | HANDLING)


def handles_signals(command: Sequence[str]) -> bool:
    """It is one that would set up handlers, so that ignoring the signals would not last."""
    by_mpi = is_launcher(command) and any(word.startswith(BY_MPI) for word in command)
    return by_mpi or not _named(command).isdisjoint(HANDLING)


def _named(command: Sequence[str]) -> set[str]:
    """Modules after ``-m``, and programs; ``mpirun.openmpi`` is Debian's name of an mpirun."""
    modules = {word for flag, word in pairwise(command) if flag == "-m"}
    return modules | {
        PurePath(word).name.partition(".")[0] for word in command[:LOOKED_AT_MAX] if word != "-m"
    }
