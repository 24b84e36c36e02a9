"""Launchers that are known to end, and their ranks with them, by a signal that the agent acts
on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

PROGRAMS = frozenset({"torchrun", "accelerate", "deepspeed", "composer"})
MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
    }
)
LOOKED_AT_MAX = 8
"""Words of the command among which the launcher's name is looked for."""


def is_launcher(command: Sequence[str]) -> bool:
    """The command is one, or runs one by way of a program that becomes it (``env``, ``nice``).

    A launcher has to outlive a signal to the whole process group, so it is started with the signals
    of a notice ignored. A script that calls it is not: everything that the script starts would
    ignore them, too, and could not be ended by it any more.
    """
    after_flag = {word for flag, word in pairwise(command) if flag == "-m"}
    return not MODULES.isdisjoint(after_flag) or not PROGRAMS.isdisjoint(
        PurePath(word).name for word in command[:LOOKED_AT_MAX]
    )
