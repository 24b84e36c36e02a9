"""Are replicas really equal? Tensors of one name are saved only once.

A job that keeps different tensors under one name on its ranks (experts that are not DTensors, say)
would silently lose all but one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from drainfsm.checkpoint.modules import PARAMETERS

NAMED_MAX = 5
"""Names that a warning lists."""


def samples_of(state: dict[str, Any]) -> dict[str, bytes]:
    """A few elements of every parameter, bit for bit."""
    return {
        key: _sample(value)
        for key, value in state.items()
        if key.startswith(f"{PARAMETERS}/")
        and isinstance(value, Tensor)
        and not isinstance(value, DTensor)
        and value.numel()
    }


def differing(samples: Sequence[dict[str, bytes]]) -> list[str]:
    """Names under which ranks hold different tensors, as far as the samples tell."""
    first: dict[str, bytes] = {}
    found = {
        key
        for of_rank in samples
        for key, value in of_rank.items()
        if first.setdefault(key, value) != value
    }
    return sorted(found)


def warning_about(names: Sequence[str]) -> str:
    listed = ", ".join(names[:NAMED_MAX]) + (" …" if len(names) > NAMED_MAX else "")
    return (
        f"{len(names)} parameter(s) differ between ranks and are saved once, from one of them: "
        f"{listed}. If they are meant to differ, make them DTensors or give them names of their own"
    )


def _sample(tensor: Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    places = torch.tensor([0, len(flat) // 3, len(flat) // 2, len(flat) - 1], device=flat.device)
    return bytes(flat[places].cpu().contiguous().view(torch.uint8).tolist())
