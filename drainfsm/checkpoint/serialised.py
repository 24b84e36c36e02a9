"""Python objects inside a checkpoint: pickled the moment they are captured."""

from __future__ import annotations

import io
from typing import Any

import torch


class Serialised:
    """An object as ``torch.save`` writes it. Training may change the object afterwards."""

    def __init__(self, value: Any) -> None:
        stream = io.BytesIO()
        torch.save(value, stream)
        self.data = stream.getvalue()

    @property
    def size_bytes(self) -> int:
        return len(self.data)
