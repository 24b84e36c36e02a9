"""Rank processes whose states are changed between their saves, one rank's or all of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings
from drainfsm.store import PosixStore
from drainfsm_kit.ranks import RecordedPort

ANSWER_S_MAX = 60
"""A rank that waits for another one in vain would wait for minutes."""


class Tensors(NamedTuple):
    """Some tensors of a rank, by the same name on every rank that has them."""

    prefix: str
    rows: int
    how_many: int = 2
    dtype: torch.dtype = torch.float32

    def values(self, step: int) -> dict[str, torch.Tensor]:
        return {
            f"{self.prefix}{number}": torch.full((self.rows, 3), step * 10 + number).to(self.dtype)
            for number in range(self.how_many)
        }


class Turn(NamedTuple):
    """One save of one rank."""

    step: int
    tensors: tuple[Tensors, ...]
    note: str
    """An object's state."""

    asynchronous: bool
    fault: str
    """``capture``: the state cannot be had. ``write``: the store takes nothing."""


class Ranks:
    """So many processes; they take turns together."""

    def __init__(self, world_size: int, directory: Path) -> None:
        self.world_size = world_size
        spawn = multiprocessing.get_context("spawn")
        self._pipes = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_serve, args=(rank, world_size, directory, theirs), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def begin(self, directory: Path) -> None:
        """A new job, in the same processes."""
        directory.mkdir()
        self._ask([directory] * self.world_size)

    def save(self, turns: Sequence[Turn]) -> list[str]:
        """Reasons of those that failed."""
        return [reason for reason in self._ask(turns) if reason]

    def _ask(self, what: Sequence[Any]) -> list[Any]:
        for pipe, one in zip(self._pipes, what, strict=True):
            pipe.send(one)
        answers = []
        for pipe in self._pipes:
            assert pipe.poll(ANSWER_S_MAX), "a rank hangs"
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            process.kill()


def _serve(rank: int, world_size: int, directory: Path, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=world_size
    )
    job: _Job | None = None
    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            dist.destroy_process_group()
            return
        if isinstance(asked, Turn):
            assert job is not None
            pipe.send(job.save(asked))
        else:
            job = _Job(asked, rank=rank, world_size=world_size)
            pipe.send("")


class _Job:
    def __init__(self, directory: Path, *, rank: int, world_size: int) -> None:
        self.port = RecordedPort(
            directory,
            store_url=str(directory / "store"),
            rank=rank,
            world_size=world_size,
            settings=CheckpointSettings(every_steps=1),
        )
        self.model = nn.Module()
        self.notes = _Notes()
        self.checkpoint = Checkpoint(self.port, model=self.model, parts={"notes": self.notes})

    def save(self, turn: Turn) -> str:
        """Changes tensors in place where they keep their shape, as training does."""
        values = {name: v for some in turn.tensors for name, v in some.values(turn.step).items()}
        parameters = dict(self.model.named_parameters())
        for name in parameters.keys() - values.keys():
            delattr(self.model, name)
        for name, value in values.items():
            before = parameters.get(name)
            if before is not None and (before.size(), before.dtype) == (value.size(), value.dtype):
                before.data.copy_(value)
            else:
                setattr(self.model, name, nn.Parameter(value))
        self.notes.note, self.notes.broken = turn.note, turn.fault == "capture"
        self.port.settings = CheckpointSettings(every_steps=1, asynchronous=turn.asynchronous)
        failed = len(self.port.of("failed"))
        with _store(full=turn.fault == "write"):
            self.checkpoint.step_done(turn.step)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if turn.asynchronous:  # training goes on
                        parameter.zero_()
            self.checkpoint.close()
        dist.barrier()
        return "; ".join(report.reason for report in self.port.of("failed")[failed:])


class _Notes:
    note = ""
    broken = False

    def state_dict(self) -> dict[str, str]:
        if self.broken:
            raise ValueError("no state today")
        return {"note": self.note}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.note = state["note"]


@contextmanager
def _store(*, full: bool) -> Iterator[None]:
    def refused(store: PosixStore, name: str) -> AbstractContextManager[BinaryIO]:
        raise OSError(28, "No space left on device")

    with mock.patch.object(PosixStore, "writer", refused) if full else nullcontext():
        yield
