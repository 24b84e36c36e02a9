"""Saving and restoring with torch; the only place that imports it."""

from drainfsm.checkpoint.checkpoint import Checkpoint
from drainfsm.checkpoint.port import RankPort

__all__ = ["Checkpoint", "RankPort"]
