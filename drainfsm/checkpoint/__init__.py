"""Saving and restoring; the only place that imports torch, and only for ``Checkpoint``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainfsm.checkpoint.own import OwnCheckpoint
from drainfsm.checkpoint.port import RankPort
from drainfsm.lazy import lazy_names

__all__ = ["Checkpoint", "OwnCheckpoint", "RankPort"]

if TYPE_CHECKING:
    from drainfsm.checkpoint.checkpoint import Checkpoint
else:  # it brings torch along, and a job that saves by itself may not have it
    __getattr__ = lazy_names(__name__, {"Checkpoint": "drainfsm.checkpoint.checkpoint"})
