"""From the second save on a rank copies its share before it has asked anybody."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drainfsm.checkpoint import Checkpoint
from drainfsm.core.orders import CheckpointSettings, RestoreTarget
from drainfsm.core.state import generation_id
from drainfsm.testing.stores import new_store
from drainfsm_kit.ranks import RecordedPort, commit_saved


class Port(RecordedPort):
    """Looks, when something is staged, whether the ranks had agreed by then."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.agreed: list[bool] = []
        self.root = directory / "store"
        super().__init__(directory, store_url=str(self.root), **options)

    def report_staged(self, generation_id: str, staged_bytes: int) -> None:
        """The coordinator makes the directory once all plans have come in."""
        self.agreed.append((self.root / "generations" / generation_id).exists())
        super().report_staged(generation_id, staged_bytes)


def model() -> nn.Linear:
    return nn.Linear(32, 32)


def saves(
    tmp_path: Path, count: int, *, before: Callable[[int, Checkpoint, nn.Module], None]
) -> Port:
    """So many periodic saves; the weights are the number of the save."""
    port = Port(tmp_path, settings=CheckpointSettings(every_steps=1), drain_at=count)
    net = model()
    checkpoint = Checkpoint(port, model=net)
    for step in range(count + 1):
        nn.init.constant_(net.weight, step)
        before(step, checkpoint, net)
        checkpoint.step_done(step)
        nn.init.constant_(net.weight, -1)
    checkpoint.close()
    return port


def nothing(step: int, checkpoint: Checkpoint, net: nn.Module) -> None:
    pass


def generation(step: int) -> str:
    return generation_id(epoch=1, step=step, saver="p")


def weight_of(tmp_path: Path, step: int) -> torch.Tensor:
    target: RestoreTarget = commit_saved(
        new_store(tmp_path / "store"),
        tmp_path,
        generation=generation(step),
        step=step,
        world_size=1,
    )
    net = model()
    Checkpoint(Port(tmp_path, restore_target=target), model=net).restore()
    return net.weight


def test_what_is_staged_early_is_what_is_saved(tmp_path: Path) -> None:
    port = saves(tmp_path, 3, before=nothing)
    assert port.of("failed") == []
    assert port.agreed == [True, False, False, True], "the drain's save copies nothing"
    for step in range(3):
        assert torch.equal(weight_of(tmp_path, step), torch.full((32, 32), float(step)))


def test_a_state_of_another_shape_is_planned_first(tmp_path: Path) -> None:
    def grow(step: int, checkpoint: Checkpoint, net: nn.Module) -> None:
        if step == 2:
            net.register_buffer("more", torch.zeros(4))

    port = saves(tmp_path, 4, before=grow)
    assert port.of("failed") == []
    assert port.agreed == [True, False, True, False, True]


def test_a_share_that_turns_out_otherwise_fails_that_save_and_no_other(tmp_path: Path) -> None:
    """As if another rank's state had changed: this one's has not, but its share has."""

    def tamper(step: int, checkpoint: Checkpoint, net: nn.Module) -> None:
        if step == 2:
            checkpoint.close()
            agreed = checkpoint._agreement.last
            assert agreed is not None
            agreed.share = dataclasses.replace(agreed.share, items=agreed.share.items[1:])
            agreed.places = None  # the coordinator plans anew

    port = saves(tmp_path, 4, before=tamper)
    (failed,) = port.of("failed")
    assert failed.generation_id == generation(2)
    assert "another rank's state changed its shape" in failed.reason
    assert torch.equal(weight_of(tmp_path, 3), torch.full((32, 32), 3.0))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_synchronous_save_stages_nothing_early(tmp_path: Path, *, asynchronous: bool) -> None:
    settings = CheckpointSettings(every_steps=1, asynchronous=asynchronous)
    port = Port(tmp_path, settings=settings)
    checkpoint = Checkpoint(port, model=model())
    for step in range(2):
        checkpoint.step_done(step)
    checkpoint.close()
    assert port.agreed == [True, not asynchronous]
