"""What a plan depends on, and what of a report is news to the coordinator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from drainfsm.checkpoint.agreed import Agreed, Agreement, shape_of


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.zeros(2, 3, dtype=torch.float64)},
        {"w": torch.zeros(3, 2)},
        {"v": torch.zeros(2, 3)},
        {"w": torch.zeros(2, 3), "v": torch.zeros(1)},
        {},
    ],
)
def test_another_type_size_or_name_is_another_shape(other: dict[str, Any]) -> None:
    assert shape_of({"w": torch.zeros(2, 3)}) == shape_of({"w": nn.Parameter(torch.ones(2, 3))})
    assert shape_of({"w": torch.zeros(2, 3)}) != shape_of(other)


def agreed(shape: Any = ()) -> Agreed:
    return Agreed(save="g1", shape=shape, share=SavePlan([]), share_bytes=0, places=None)


def test_what_cannot_be_described_is_never_known() -> None:
    class OfItsOwn(torch.Tensor):
        pass

    agreement = Agreement()
    agreement.remember(agreed(None))
    assert shape_of({"w": torch.zeros(2).as_subclass(OfItsOwn)}) is None
    assert agreement.known(None) is None


def at(name: str, place: Any) -> WriteResult:
    return WriteResult(index=MetadataIndex(name), size_in_bytes=1, storage_data=place)


def test_only_what_lies_elsewhere_than_in_the_last_full_report_is_reported() -> None:
    plan = agreed()
    assert plan.report([at("a", 0), at("b", 1)], in_full=True).in_full
    for _ in range(2):
        told = plan.report([at("a", 0), at("b", 7)], in_full=False)
        assert told.results == [at("b", 7)], "beside the full report, not beside the one before"
        assert not told.in_full
    assert plan.report([at("a", 0), at("b", 1)], in_full=False).results == []
