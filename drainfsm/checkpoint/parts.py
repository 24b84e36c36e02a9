"""What a job saves: the parts given to ``session.checkpoint(...)``, sorted by kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from drainfsm.checkpoint.modules import apply_module, capture_module, check_module
from drainfsm.checkpoint.names import parameter_names
from drainfsm.checkpoint.objects import Saved, check_object, reshard, set_state, state_of
from drainfsm.checkpoint.optimizers import (
    apply_optimizer,
    capture_optimizer,
    optimizer_targets,
)
from drainfsm.checkpoint.randomness import random_state, set_random_state
from drainfsm.checkpoint.serialised import Serialised
from drainfsm.errors import RestoreRefusedError

RANKS = "ranks"
"""What each rank has for itself: random state, data position, everything that is not a tensor."""

GUESSED_STATE_COPIES = 2
"""State of an optimizer that was never stepped, in copies of its parameters (Adam has two)."""


class Parts:
    """Modules and optimizers, whose tensors are divided among the ranks, and all other objects,
    which each rank saves for itself."""

    def __init__(self, given: dict[str, Any]) -> None:
        """``given``: by name. None is left out; a list or tuple becomes ``name0``, ``name1`` …

        Raises:
            ConfigError: something cannot be saved.
        """
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.objects: dict[str, Any] = {}
        self.ended = False
        """What was restored was saved when the loop had ended."""

        for name, part in _flat(given):
            if isinstance(part, nn.Module):
                check_module(name, part)
                self.modules[name] = part
            elif isinstance(part, Optimizer):
                self.optimizers[name] = part
            else:
                check_object(name, part)
                self.objects[name] = part

    def let_go_of_workers(self) -> None:
        """Data loaders end their workers now, as far as nobody else iterates. At the exit of the
        interpreter, which ends them by a signal, torch would call them killed."""
        for part in self.objects.values():
            if getattr(part, "_iterator", None) is not None:
                part._iterator = None

    def capture(self, *, rank: int, step: int, ended: bool) -> dict[str, Any]:
        """Flat: references to tensors as they are now, and everything else serialised. ``ended``:
        the loop has."""
        captured: dict[str, Any] = {}
        for name, module in self.modules.items():
            captured.update(capture_module(name, module))
        names = parameter_names(self.modules)
        for name, optimizer in self.optimizers.items():
            captured.update(capture_optimizer(name, optimizer, names))
        own = {
            "step": step,
            "ended": ended,
            "objects": {name: state_of(part) for name, part in self.objects.items()},
            "random": random_state(),
        }
        captured[rank_key(rank)] = Serialised(own)
        return captured

    def targets(self, metadata: Metadata, saved: Saved) -> dict[str, Any]:
        """What this rank wants from the checkpoint: the tensors to fill, None for objects."""
        wanted: dict[str, Any] = {rank_key(rank): None for rank in saved.ranks_to_read}
        for name, module in self.modules.items():
            for key, value in capture_module(name, module).items():
                wanted[key] = value if isinstance(value, Tensor) else None
        names = parameter_names(self.modules)
        for name, optimizer in self.optimizers.items():
            wanted.update(optimizer_targets(name, optimizer, names, metadata))
        return wanted

    def apply(self, loaded: dict[str, Any], saved: Saved) -> tuple[str, ...]:
        """Put back what ``capture`` had captured; the random state last, so that what follows
        draws the same numbers as if nothing had happened. Returns the names of what could not be
        put back because another number of ranks had saved it.

        Raises:
            RestoreRefusedError: a part does not take its state, or exists on one side only.
        """
        of_ranks = [loaded[rank_key(rank)] for rank in saved.ranks_to_read]
        self._check_own(of_ranks, saved)
        self.ended = of_ranks[0].get("ended", False)  # not in older generations
        for name, module in self.modules.items():
            apply_module(name, module, loaded)
        names = parameter_names(self.modules)
        for name, optimizer in self.optimizers.items():
            apply_optimizer(name, optimizer, names, loaded)
        if saved.resharded:
            states = [own["objects"] for own in of_ranks]
            return (*reshard(self.objects, states, saved), "random states")
        for name, part in self.objects.items():
            set_state(name, part, of_ranks[0]["objects"][name])
        set_random_state(of_ranks[0]["random"])
        return ()

    def _check_own(self, of_ranks: list[Any], saved: Saved) -> None:
        for rank, own in zip(saved.ranks_to_read, of_ranks, strict=True):
            if own["step"] != saved.step:
                raise RestoreRefusedError(
                    f"rank {rank} was saved at step {own['step']}, not {saved.step}"
                )
            if own["objects"].keys() != self.objects.keys():
                raise RestoreRefusedError(
                    f"saved with the parts {sorted(own['objects'])}, and has "
                    f"{sorted(self.objects)}: give session.checkpoint(...) what it was given then"
                )

    def share_bytes(self, world_size: int) -> int:
        """About how much this rank will write: its shards, and its share of replicas."""
        total = 0.0
        for module in self.modules.values():
            total += sum(_share(t, world_size) for t in module.state_dict().values())
        for optimizer in self.optimizers.values():
            state = [
                _share(value, world_size)
                for entries in optimizer.state.values()
                for value in entries.values()
            ]
            if not state:
                trained = (p for group in optimizer.param_groups for p in group["params"])
                state = [GUESSED_STATE_COPIES * _share(p, world_size) for p in trained]
            total += sum(state)
        return round(total)


def rank_key(rank: int) -> str:
    return f"{RANKS}/{rank:05d}"


def _flat(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in given.items():
        if isinstance(part, list | tuple):
            for index, item in enumerate(part):
                yield f"{name}{index}", item
        elif part is not None:
            yield name, part


def _share(value: object, world_size: int) -> float:
    if isinstance(value, DTensor):
        local = value.to_local()
        return local.numel() * local.element_size()
    if isinstance(value, Tensor):
        return value.numel() * value.element_size() / world_size
    return 0.0
