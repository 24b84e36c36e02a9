"""What becomes of the parts that each rank saves for itself, when other ranks go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from drainfsm.checkpoint.objects import Saved, reshard
from drainfsm.errors import RestoreRefusedError

TWO_FROM_FOUR = Saved(step=3, world_size=4, rank=1, ranks=2, resharded=True)


class Counter:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Data(Counter):
    def __iter__(self) -> Iterator[int]:
        return iter(())


class Elastic(Data):
    def load_resharded(self, states: list[dict[str, Any]], *, rank: int, world_size: int) -> None:
        if not states[0]:
            raise ValueError("nothing to share out")
        self.state = {"of": [state["at"] for state in states], "here": (rank, world_size)}


def of_ranks(*states: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"part": state} for state in states]


def test_what_was_alike_on_all_ranks_is_given_to_all() -> None:
    part = Counter()
    state = {"seen": torch.tensor([1.5]), "note": "x"}
    states = of_ranks(*({"seen": torch.tensor([1.5]), "note": "x"} for _ in range(4)))
    assert reshard({"part": part}, states, TWO_FROM_FOUR) == ()
    assert part.state == state


def test_a_scheduler_goes_on() -> None:
    def scheduler() -> torch.optim.lr_scheduler.LRScheduler:
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)

    states = []
    for _ in range(4):
        there = scheduler()
        there.last_epoch = 7
        states.append(there.state_dict())
    here = scheduler()
    assert reshard({"part": here}, of_ranks(*states), TWO_FROM_FOUR) == ()
    assert here.last_epoch == 7


def test_data_and_generators_start_anew_and_are_named() -> None:
    data = Data()
    parts = {"loader": data, "noise": torch.Generator()}
    states = [{"loader": {"at": 4}, "noise": None} for _ in range(4)]
    assert reshard(parts, states, TWO_FROM_FOUR) == ("loader", "noise")
    assert data.state == {}, "alike, but four ranks were there: a quarter each"


def test_a_part_that_can_is_given_the_states_of_all_ranks() -> None:
    part = Elastic()
    states = of_ranks({"at": 1}, {"at": 2}, {"at": 3}, {"at": 4})
    assert reshard({"part": part}, states, TWO_FROM_FOUR) == ()
    assert part.state == {"of": [1, 2, 3, 4], "here": (1, 2)}
    with pytest.raises(RestoreRefusedError, match=r"part \(Elastic\) cannot be resharded: nothing"):
        reshard({"part": part}, of_ranks({}, {}, {}, {}), TWO_FROM_FOUR)


def test_what_differed_and_may_not_start_anew_is_refused() -> None:
    states = of_ranks({"at": 1}, {"at": 1}, {"at": 2}, {"at": 1})
    with pytest.raises(RestoreRefusedError, match=r"part \(Counter\) differed between the 4 ranks"):
        reshard({"part": Counter()}, states, TWO_FROM_FOUR)
