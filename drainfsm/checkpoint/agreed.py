"""What the ranks agreed on at an earlier save, kept by each of them for the saves after it.

Who writes what depends on what every rank has: names, sizes, types, placements. A rank that has
what it had then names that save. Only if all ranks name the same one is its plan taken again, and a
word goes over the wire in place of the plan; otherwise all of them plan anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from drainfsm.checkpoint.places import Places, ReportedPlaces
from drainfsm.checkpoint.serialised import Serialised

Shape = tuple[tuple[Any, ...], ...]


def shape_of(state: dict[str, Any]) -> Shape | None:
    """All of a state that a plan depends on. None: something in it cannot be described, and is
    planned anew at every save."""
    parts: list[tuple[Any, ...]] = []
    for key, value in state.items():
        kind = type(value)
        if kind is Serialised:
            parts.append((key,))
        elif isinstance(value, DTensor):
            parts.append((key, value.size(), value.dtype, value.placements, value.device_mesh))
        elif kind in (Tensor, nn.Parameter):
            parts.append((key, value.size(), value.dtype))
        else:  # it may have a way of its own to be divided
            return None
    return tuple(parts)


@dataclass(kw_only=True)
class Agreed:
    """One plan, as one rank knows it."""

    save: str
    """The generation at whose save it was agreed. A generation is saved once, so no two plans have
    the same name."""

    shape: Shape | None
    share: SavePlan
    """What this rank writes."""

    share_bytes: int
    places: Places | None
    """On the coordinator: what all ranks write, and where."""

    reported: list[WriteResult] = field(default_factory=list)
    """What this rank wrote when it last reported all of it."""

    def report(self, results: list[WriteResult], *, in_full: bool) -> ReportedPlaces:
        """What the coordinator has to hear of these results, which are in the plan's order."""
        if in_full:
            self.reported = results
            return ReportedPlaces(results=results, in_full=True)
        moved = [
            now
            for now, before in zip(results, self.reported, strict=True)
            if not _same(now, before)
        ]
        return ReportedPlaces(results=moved, in_full=False)


def _same(one: WriteResult, other: WriteResult) -> bool:
    return one.index == other.index and one.storage_data == other.storage_data


class Agreement:
    """The last plan that was agreed; none before the first."""

    def __init__(self) -> None:
        self.last: Agreed | None = None

    def remember(self, agreed: Agreed) -> None:
        self.last = agreed

    def known(self, shape: Shape | None) -> Agreed | None:
        """The plan for a rank that has this; None: there is none yet."""
        if self.last is None or shape is None or self.last.shape != shape:
            return None
        return self.last
