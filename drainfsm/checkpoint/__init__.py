"""Saving and restoring; the only place that imports torch, and only for ``Checkpoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drainfsm.checkpoint.own import OwnCheckpoint
from drainfsm.checkpoint.port import RankPort

if TYPE_CHECKING:
    from drainfsm.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint", "OwnCheckpoint", "RankPort"]


def __getattr__(name: str) -> Any:
    """``Checkpoint`` brings torch along: a job that saves by itself may not have it."""
    if name == "Checkpoint":
        from drainfsm.checkpoint.checkpoint import Checkpoint

        return Checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
