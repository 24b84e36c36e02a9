"""Where the order of a loader's samples comes from, in whatever a framework has wrapped it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def samplers(loader: Any) -> Iterator[Any]:
    """Of a loader: its samplers, outermost first."""
    for name in ("batch_sampler", "sampler", "_sampler"):
        found = getattr(loader, name, None)
        if found is not None:
            yield found
            yield from samplers(found)
    wrapped = getattr(loader, "dataset", None)  # of Lightning's wrapper: the sampler inside
    if hasattr(wrapped, "_sampler"):
        yield from samplers(wrapped)


def samplers_with_epoch(loader: Any) -> list[Any]:
    """Those whose order follows from the epoch that they are told."""
    return [
        one
        for one in samplers(loader)
        if isinstance(getattr(one, "epoch", None), int) and hasattr(one, "set_epoch")
    ]


def order_is_lost(loader: Any) -> bool:
    """Whether another iteration has another order, whatever was saved and seeded. torch's and
    torchdata's samplers of that name draw it; one that can be told an epoch repeats it."""
    return any(
        any(kind.__name__ == "RandomSampler" for kind in type(one).__mro__)
        and not hasattr(one, "set_epoch")
        for one in samplers(loader)
    )
