"""Adapters of the shape of 0.1, for one release: ``left(*, requeue, timeout_ms)``, which takes a
``Departure`` today."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from drainfsm.adapter import Adapter, Departure

KEPT = ("watch", "cordon", "interpret", "stay")


def of_today(name: str, loaded: Any) -> Adapter:
    """The adapter as it is, or one that speaks for it."""
    adapter: Adapter = loaded
    if _is_former(getattr(loaded, "left", None)):
        warnings.warn(
            f"adapter {name}: left(requeue, timeout_ms) takes a Departure now, see "
            "drainfsm.adapter; the next release will not call the former any more",
            DeprecationWarning,
            stacklevel=2,
        )
        adapter = _Former(loaded)
    return adapter


def _is_former(left: Any) -> bool:
    try:
        return "requeue" in inspect.signature(left).parameters
    except (TypeError, ValueError):
        return False


class _Former:
    def __init__(self, loaded: Any) -> None:
        self._left = loaded.left
        for name in KEPT:
            if hasattr(loaded, name):
                setattr(self, name, getattr(loaded, name))

    async def left(self, departure: Departure) -> str:
        said = await self._left(requeue=departure.requeue, timeout_ms=departure.timeout_ms)
        return str(said or "")
