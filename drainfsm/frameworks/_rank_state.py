"""What a rank saves beside the framework's own files: ``rankN.pt`` in the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drainfsm.checkpoint.randomness import random_state, set_random_state

__all__ = ["read_rank_state", "set_random_state", "write_rank_state"]


def write_rank_state(directory: Path, rank: int, **state: Any) -> None:
    """With the random states as they are now, as ``random``."""
    torch.save({**state, "random": random_state()}, directory / f"rank{rank}.pt")


def read_rank_state(directory: Path, rank: int) -> dict[str, Any]:
    """What the rank wrote; empty: the job that wrote it had fewer ranks. The directory is one that
    was committed, and its files were verified."""
    path = directory / f"rank{rank}.pt"
    state: dict[str, Any] = torch.load(path, weights_only=False) if path.exists() else {}
    return state
