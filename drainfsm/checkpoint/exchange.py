"""How the ranks of one job agree about a save or a restore: a gloo group of their own.

Training collectives never share it, so a save in the background cannot get into their order. A rank
on which something goes wrong sends that instead of its answer, so that no other waits in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

import drainfsm.errors
from drainfsm.errors import (
    CheckpointError,
    ConfigError,
    DrainfsmError,
    NoRoomError,
    SaveFailedError,
)

PEER_WAIT = timedelta(minutes=10)
"""Longest wait for the slowest rank. A dead one is noticed at once; this is for one that hangs."""

COORDINATOR = 0

SENT_BYTES = 1 << 30
"""At most, in one message."""

T = TypeVar("T")
R = TypeVar("R")


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for the answer of a rank on which something went wrong."""

    rank: int
    kind: str
    """Name of the class in ``drainfsm.errors``."""

    reason: str
    details: dict[str, Any] = {}
    """Further arguments of the class."""

    @classmethod
    def of(cls, error: BaseException, *, rank: int) -> RankFailure:
        if isinstance(error, NoRoomError):
            return cls(rank=rank, kind=NoRoomError.__name__, reason=str(error), details=vars(error))
        if isinstance(error, DrainfsmError):
            return cls(rank=rank, kind=type(error).__name__, reason=str(error))
        kind = SaveFailedError.__name__
        return cls(rank=rank, kind=kind, reason=f"{type(error).__name__}: {error}")


class Exchange:
    """Collectives of a checkpoint. Every rank calls the same ones in the same order."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        """Collective, if there is more than one rank.

        Raises:
            ConfigError: torch.distributed is not initialised yet, or has other ranks.
        """
        self.rank = rank
        self.world_size = world_size
        self.broken = ""
        """Not empty: why the group can no longer be used."""

        self._group: Any = None
        if dist.is_available() and dist.is_initialized():
            here = (dist.get_rank(), dist.get_world_size())
            if here != (rank, world_size):
                raise ConfigError(
                    f"torch.distributed says rank {here[0]} of {here[1]}, but drainfsm was "
                    f"attached as rank {rank} of {world_size}: pass both to drainfsm.attach()"
                )
            if world_size > 1:
                self._group = dist.new_group(backend="gloo", timeout=PEER_WAIT)
        elif world_size > 1:
            raise ConfigError(
                "call torch.distributed.init_process_group() before session.checkpoint(...): "
                f"this is rank {rank} of {world_size}"
            )

    @property
    def coordinates(self) -> bool:
        return self.rank == COORDINATOR

    def plan(self, local: Callable[[], T], together: Callable[[list[T]], list[R]]) -> R:
        """Each rank's local value goes to the coordinator, whose answers go back, one each.

        Raises:
            CheckpointError: of the first rank on which something failed, on every rank.
        """
        answers: list[R | RankFailure] | None = None
        gathered = self._gather(self._attempt(local))
        if gathered is not None:
            made: list[R] | RankFailure | None = _first_failure(gathered)
            if made is None:
                made = self._attempt(lambda: together(cast("list[T]", gathered)))
            answers = [made] * self.world_size if isinstance(made, RankFailure) else list(made)
        return _value(self._scatter(answers))

    def collect(self, local: T | RankFailure) -> list[T] | None:
        """All ranks' values on the coordinator, None elsewhere.

        Raises:
            CheckpointError: of the first rank on which something failed, on the coordinator.
        """
        gathered = self._gather(local)
        if gathered is None:
            return None
        return [_value(value) for value in gathered]

    def share(self, local: Callable[[], T]) -> list[T]:
        """All ranks' values, on all ranks.

        Raises:
            CheckpointError: of the first rank on which something failed, on every rank.
        """
        value = self._attempt(local)
        if self._group is None:
            return [_value(value)]
        values: list[T | RankFailure] = [value] * self.world_size
        self._call(lambda: dist.all_gather_object(values, value, group=self._group))
        failed = _first_failure(values)
        if failed is not None:
            raise _error_of(failed)
        return cast("list[T]", values)

    def from_coordinator(self, make: Callable[[], T]) -> T:
        """The coordinator's value, on all ranks.

        Raises:
            CheckpointError: what went wrong there, on every rank.
        """
        values = [self._attempt(make) if self.coordinates else None]
        if self._group is not None:
            self._call(
                lambda: dist.broadcast_object_list(values, src=COORDINATOR, group=self._group)
            )
        return _value(cast("T | RankFailure", values[0]))

    def send_each(self, places: Sequence[tuple[int, Tensor]], members: Sequence[int]) -> None:
        """Each of these contiguous tensors goes from the rank that is named with it to the other
        ``members``, all at once. Collective among them."""
        self._call(lambda: self._send(places, members))

    def _send(self, places: Sequence[tuple[int, Tensor]], members: Sequence[int]) -> None:
        """Not by a group of the members: one that is made again after it was destroyed finds the
        addresses of the earlier one, and waits for them."""
        under_way: list[Any] = []
        for sender, place in places:
            for piece in torch.split(place.view(-1).view(torch.uint8), SENT_BYTES):
                if sender != self.rank:
                    under_way.append(dist.irecv(piece, src=sender, group=self._group))
                    continue
                others = [rank for rank in members if rank != sender]
                under_way += [dist.isend(piece, dst=rank, group=self._group) for rank in others]
        for message in under_way:
            message.wait()

    def _attempt(self, make: Callable[[], T]) -> T | RankFailure:
        try:
            return make()
        except Exception as error:
            return RankFailure.of(error, rank=self.rank)

    def _gather(self, value: T) -> list[T] | None:
        if self._group is None:
            return [value]
        gathered: list[Any] | None = [None] * self.world_size if self.coordinates else None
        self._call(lambda: dist.gather_object(value, gathered, dst=COORDINATOR, group=self._group))
        return gathered

    def _scatter(self, values: list[T] | None) -> T:
        if self._group is None:
            return cast("list[T]", values)[0]
        received: list[Any] = [None]
        self._call(
            lambda: dist.scatter_object_list(received, values, src=COORDINATOR, group=self._group)
        )
        return cast(T, received[0])

    def _call(self, collective: Callable[[], object]) -> None:
        if self.broken:
            raise SaveFailedError(f"the ranks can no longer agree: {self.broken}")
        try:
            collective()
        except Exception as error:  # a peer died or hangs; torch names no narrower class
            self.broken = f"{type(error).__name__}: {error}"
            if not dist.is_initialized():
                raise SaveFailedError(
                    "torch.distributed was shut down before the last save: call session.close() "
                    "before destroy_process_group()"
                ) from error
            raise SaveFailedError(f"lost touch with another rank: {error}") from error


def _first_failure(values: list[Any]) -> RankFailure | None:
    return next((value for value in values if isinstance(value, RankFailure)), None)


def _value(value: T | RankFailure) -> T:
    if isinstance(value, RankFailure):
        raise _error_of(value)
    return value


def _error_of(failure: RankFailure) -> CheckpointError:
    kind = getattr(drainfsm.errors, failure.kind, SaveFailedError)
    if not issubclass(kind, CheckpointError):
        kind = SaveFailedError
    error: CheckpointError = kind(f"rank {failure.rank}: {failure.reason}", **failure.details)
    return error
