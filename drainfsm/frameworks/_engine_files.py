"""Checkpoints in the files of an engine that saves with all ranks into one directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from drainfsm.checkpoint import OwnCheckpoint
from drainfsm.checkpoint.exchange import Exchange
from drainfsm.checkpoint.objects import check_object, set_state, state_of
from drainfsm.errors import RestoreRefusedError
from drainfsm.frameworks._rank_state import (
    read_rank_state,
    set_random_state,
    write_rank_state,
)
from drainfsm.session import Session

log = logging.getLogger("drainfsm.frameworks")

FP32_BYTES = 4
ADAM_COPIES = 3
"""A full-precision copy of the weights, and Adam's two moments of it."""


class EngineFiles:
    """What ``Session.own_checkpoint`` needs of a job whose engine writes the files.

    Beside them stands a file of each rank's own: random state, and the objects that the engine
    does not keep (the data position).
    """

    def __init__(
        self,
        session: Session,
        *,
        write: Callable[[Path], object],
        read: Callable[[Path], object],
        objects: Mapping[str, Any],
    ) -> None:
        """Collective under an agent. ``write`` and ``read`` are the engine's own, called on every
        rank with the same directory. ``objects``: with ``state_dict`` and ``load_state_dict``; None
        is left out.

        Raises:
            ConfigError: an object cannot be saved, or torch.distributed has other ranks.
        """
        self._session = session
        self._write = write
        self._read = read
        self._objects = {name: part for name, part in objects.items() if part is not None}
        for name, part in self._objects.items():
            check_object(name, part)
        self._ranks = (
            Exchange(rank=session.rank, world_size=session.world_size) if session.job_id else None
        )

    def checkpoint(self, *, saver: str, save_bytes: int) -> OwnCheckpoint:
        """``saver``: the engine's name; ``save_bytes``: about how much this rank writes."""
        return self._session.own_checkpoint(
            save=self.save, load=self.load, shared=True, saver=saver, save_bytes=save_bytes
        )

    @property
    def _exchange(self) -> Exchange:
        assert self._ranks is not None, "nothing is saved or loaded without an agent"
        return self._ranks

    def save(self, directory: Path, _step: int) -> list[str]:
        """Returns the files that this rank answers for: each that is there, dealt out among the
        ranks that see it. Collective: what fails on one rank fails on all.

        Raises:
            SaveFailedError: it failed on some rank.
        """

        def write() -> None:
            self._write(directory)
            objects = {name: state_of(part) for name, part in self._objects.items()}
            write_rank_state(
                directory,
                self._session.rank,
                objects=objects,
                world_size=self._session.world_size,
            )

        self._exchange.share(write)
        seen = self._exchange.share(lambda: _files_in(directory))
        return [
            name
            for number, name in enumerate(sorted(set().union(*seen)))
            if self._session.rank == _dealt_to(number, [name in files for files in seen])
        ]

    def load(self, directory: Path, _step: int) -> None:
        """Collective.

        Raises:
            RestoreRefusedError: something does not take its state, on some rank.
        """

        def read() -> None:
            self._read(directory)
            saved = read_rank_state(directory, self._session.rank)
            if saved.get("world_size") == self._session.world_size:
                self._load_own(saved)
            else:
                self._start_anew()

        self._exchange.share(read)

    def _load_own(self, saved: dict[str, Any]) -> None:
        if saved["objects"].keys() != self._objects.keys():
            raise RestoreRefusedError(
                f"saved with {sorted(saved['objects'])}, and drain(...) has "
                f"{sorted(self._objects)}: give it what it was given then"
            )
        for name, part in self._objects.items():
            set_state(name, part, saved["objects"][name])
        set_random_state(saved["random"])

    def _start_anew(self) -> None:
        """Another number of ranks has saved, and the job may change it (``reshard``)."""
        if self._session.rank == 0:
            names = ", ".join([*self._objects, "random states"])
            log.warning("saved by another number of ranks: %s start anew", names)


def guessed_bytes(module: torch.nn.Module, *, world_size: int) -> int:
    """About what a rank writes of a module and its Adam, for the first drain's decision."""
    total = 0
    for parameter in module.parameters():
        count = int(getattr(parameter, "ds_numel", parameter.numel()))  # ds_numel: under ZeRO 3
        total += count * (parameter.element_size() + ADAM_COPIES * FP32_BYTES)
    return total // world_size


def _files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def _dealt_to(number: int, sees: list[bool]) -> int:
    """In turn. A network file system shows a new file to its writer first, and then to others."""
    ranks = [rank for rank, seen in enumerate(sees) if seen]
    return ranks[number % len(ranks)]
