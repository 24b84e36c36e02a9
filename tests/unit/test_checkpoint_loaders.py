"""A data loader goes on where it was, in the order of the epoch that it was in."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from drainfsm.checkpoint.objects import EPOCHS, set_state, state_of

# torchdata 0.11 under torch 2.13
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
SAMPLES = range(48)


def made(kind: Any, workers: int) -> tuple[Any, StatefulDataLoader[int]]:
    sampler = kind(SAMPLES, num_replicas=2, rank=1, shuffle=True)
    return sampler, StatefulDataLoader(
        SAMPLES,
        batch_size=4,
        sampler=sampler,
        num_workers=workers,
    )


@pytest.mark.parametrize("kind", [DistributedSampler, StatefulDistributedSampler])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_rest_of_a_later_epoch_has_the_order_of_that_epoch(kind: Any, workers: int) -> None:
    sampler, loader = made(kind, workers)
    sampler.set_epoch(5)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = state_of(loader)
    rest = [batch.tolist() for batch in batches]

    again, resumed = made(kind, workers)
    set_state("loader", resumed, state)
    assert again.epoch == 5
    again.set_epoch(5)  # as a loop does, and too late to matter
    assert [batch.tolist() for batch in resumed] == rest
    again.set_epoch(6)
    sampler.set_epoch(6)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in loader]


def test_a_state_from_before_the_epochs_were_saved_is_taken() -> None:
    _, loader = made(DistributedSampler, 0)
    batches = iter(loader)
    next(batches)
    state = {name: value for name, value in state_of(loader).items() if name != EPOCHS}
    _, resumed = made(DistributedSampler, 0)
    set_state("loader", resumed, state)
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in batches]
