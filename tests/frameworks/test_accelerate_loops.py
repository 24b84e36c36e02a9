"""Accelerate's loops, as they are left by the scripts that people write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

accelerate = pytest.importorskip("accelerate", reason="`make frameworks` installs it")

BATCHES, EPOCHS = 4, 2


@pytest.mark.parametrize(
    ("leaves_at", "before_its_step", "done"),
    [
        (EPOCHS * BATCHES, False, EPOCHS * BATCHES),
        (EPOCHS * BATCHES - 1, False, EPOCHS * BATCHES - 1),
        (EPOCHS * BATCHES, True, EPOCHS * BATCHES - 1),
    ],
    ids=["after_the_last_step", "after_another_step", "before_the_last_step"],
)
def test_a_loop_that_is_left_by_break_has_done_the_steps_that_it_did(
    leaves_at: int, before_its_step: bool, done: int
) -> None:
    from drainfsm.frameworks.accelerate import drain

    accelerator = accelerate.Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    data = DataLoader(TensorDataset(torch.ones(BATCHES, 1)))
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.1), data
    )
    loop, steps = drain(accelerator), 0
    told: list[Any] = []
    for _ in loop.epochs(EPOCHS):
        told.append(loop.session.last_step + 1)
        for _, (batch,) in enumerate(loop.batches(loader), start=1):
            if before_its_step and steps + 1 == leaves_at:
                break
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps == leaves_at:
                break
    assert told == [0, BATCHES]
    assert loop.session.last_step == done - 1 == steps - 1
