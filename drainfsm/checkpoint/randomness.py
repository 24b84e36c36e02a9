"""The random generators of one rank: Python's, torch's, the current device's, and numpy's."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import torch

from drainfsm.errors import RestoreRefusedError


def cuda_in_use() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def random_state() -> dict[str, Any]:
    """As it is now. numpy's legacy generator is part of it only where numpy is loaded."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if cuda_in_use():
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Raises:
    RestoreRefusedError: a generator that was saved does not exist here.
    """
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        if not torch.cuda.is_available():
            raise RestoreRefusedError("the checkpoint has a CUDA random state; there is no CUDA")
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        try:
            numpy = importlib.import_module("numpy")
        except ImportError as error:
            raise RestoreRefusedError(
                "the checkpoint has a numpy random state: install numpy"
            ) from error
        numpy.random.set_state(state["numpy"])
