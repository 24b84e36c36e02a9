"""Whose the files of a framework's checkpoint are, and what a rank saves beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from drainfsm.errors import ConfigError

_SHARD = re.compile(r"__(\d+)_\d+\.distcp")
"""What ``torch.distributed.checkpoint`` calls the files of a rank."""


def imported(module: str, *, extra: str) -> Any:
    """The framework's module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ConfigError(
            f"drainfsm.frameworks.{extra} needs {package} ({error}): install it with `pip install "
            f"'drainfsm[{extra}]'`"
        ) from error


def files_of(directory: Path, *, rank: int, rank_of: re.Pattern[str] = _SHARD) -> Iterator[str]:
    """Names below ``directory`` that this rank answers for, when all ranks have written: those
    with its number, as ``rank_of`` finds it in a file's name, and on rank 0 all that have none."""
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            continue
        found = rank_of.fullmatch(path.name)
        if (int(found[1]) if found else 0) == rank:
            yield path.relative_to(directory).as_posix()
