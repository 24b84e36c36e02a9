"""Parts that are neither modules nor optimizers: each rank saves its own.

With another number of ranks, a rank has no predecessor. What was alike on all of them is given to
all; data positions and random states start anew; a part that can do better has a method
``load_resharded(states, *, rank, world_size)``, which gets the states of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from drainfsm.checkpoint.samplers import samplers_with_epoch
from drainfsm.checkpoint.serialised import Serialised
from drainfsm.errors import ConfigError, RestoreRefusedError

EPOCHS = "drainfsm.epochs"
"""In the state of a loader: of its samplers."""


class Saved(NamedTuple):
    """What is being restored, and where."""

    step: int
    world_size: int
    """Number of ranks that saved it."""

    rank: int
    ranks: int
    """Number of ranks of this job."""

    resharded: bool
    """Another number of ranks saved it."""

    @property
    def ranks_to_read(self) -> tuple[int, ...]:
        """The rank whose own part this rank reads."""
        return tuple(range(self.world_size)) if self.resharded else (self.rank,)


def reshard(
    parts: dict[str, Any], states: Sequence[dict[str, Any]], saved: Saved
) -> tuple[str, ...]:
    """Put back what can be put back; returns the names of what starts anew.

    Raises:
        RestoreRefusedError: a part differed between the ranks, and must not start anew.
    """
    anew = []
    for name, part in parts.items():
        of_ranks = [state[name] for state in states]
        if callable(getattr(part, "load_resharded", None)):
            _load_resharded(name, part, of_ranks, saved)
        elif isinstance(part, torch.Generator) or hasattr(part, "__iter__"):
            anew.append(name)
        elif _alike(of_ranks):
            set_state(name, part, of_ranks[0])
        else:
            raise RestoreRefusedError(
                f"{name} ({type(part).__name__}) differed between the {saved.world_size} ranks "
                f"that saved it, and there are {saved.ranks} now: start the job with "
                f"{saved.world_size}, or give it a method load_resharded(states, *, rank, "
                "world_size)"
            )
    return tuple(anew)


def _alike(states: Sequence[Any]) -> bool:
    first = Serialised(states[0]).data
    return all(Serialised(state).data == first for state in states[1:])


def _load_resharded(name: str, part: Any, states: list[Any], saved: Saved) -> None:
    try:
        states = [_divided(state)[0] for state in states]
        part.load_resharded(states, rank=saved.rank, world_size=saved.ranks)
    except Exception as error:
        raise RestoreRefusedError(
            f"{name} ({type(part).__name__}) cannot be resharded: {error}"
        ) from error


def check_object(name: str, part: Any) -> None:
    if isinstance(part, torch.Generator):
        return
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(part, method, None)):
            if isinstance(part, DataLoader):
                raise ConfigError(
                    f"checkpoint part {name!r}: torch's DataLoader cannot say where it stands. "
                    "Take torchdata.stateful_dataloader.StatefulDataLoader, which takes the same "
                    "arguments (`pip install torchdata`), or leave the loader out and begin its "
                    "data at the step that restore() returns"
                )
            raise ConfigError(
                f"checkpoint part {name!r} ({type(part).__name__}) has no {method}(): give "
                "session.checkpoint(...) things that have state_dict() and load_state_dict()"
            )


def state_of(part: Any) -> Any:
    """What ``set_state`` takes."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    state = part.state_dict()
    epochs = [one.epoch for one in samplers_with_epoch(part)]
    return {**state, EPOCHS: epochs} if epochs and isinstance(state, dict) else state


def _divided(state: Any) -> tuple[Any, list[int]]:
    """The part's own state, and the epochs of its samplers."""
    if not isinstance(state, dict) or EPOCHS not in state:
        return state, []
    return {key: value for key, value in state.items() if key != EPOCHS}, state[EPOCHS]


def set_state(name: str, part: Any, state: Any) -> None:
    if isinstance(part, torch.Generator):
        part.set_state(state)
        return
    own, epochs = _divided(state)
    try:
        for sampler, epoch in zip(samplers_with_epoch(part), epochs, strict=False):
            sampler.set_epoch(epoch)  # or the order that is gone through below is another epoch's
        part.load_state_dict(own)
    except Exception as error:
        raise RestoreRefusedError(
            f"{name} ({type(part).__name__}) does not take its state: {error}"
        ) from error
    # A data loader makes its iterator when it is first asked for it, and draws a random number
    # then. Asked here, that happens before the random state is put back.
    part.state_dict()
