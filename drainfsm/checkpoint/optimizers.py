"""Optimizers in a checkpoint: state under the names of the parameters it belongs to.

``torch.distributed.checkpoint.state_dict`` has functions for this; they step the optimizer to make
it create state, and refuse a parameter that never had a gradient. Here what the checkpoint holds
decides which state there will be, and the optimizer is never stepped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from drainfsm.checkpoint.serialised import Serialised
from drainfsm.errors import RestoreRefusedError

OPTIMIZERS = "optimizers"
_STATE = "state"
_GROUPS = "param_groups"


def capture_optimizer(
    name: str, optimizer: Optimizer, parameter_names: dict[int, str]
) -> dict[str, Any]:
    """Flat: references to the state's tensors; the groups and all other state serialised."""
    saved = optimizer.state_dict()
    names = _names_in_order(optimizer, parameter_names)
    captured: dict[str, Any] = {}
    for index, entries in saved[_STATE].items():
        parameter = names[index] if isinstance(index, int) else f"@{index}"
        for key, value in entries.items():
            kept = value if isinstance(value, Tensor) else Serialised(value)
            captured[f"{_prefix(name)}{_STATE}/{parameter}/{key}"] = kept
    others = {key: value for key, value in saved.items() if key != _STATE}
    others[_GROUPS] = [
        {**group, "params": [names[index] for index in group["params"]]} for group in saved[_GROUPS]
    ]
    captured[f"{_prefix(name)}{_GROUPS}"] = Serialised(others)
    return captured


def optimizer_targets(
    name: str, optimizer: Optimizer, parameter_names: dict[int, str], metadata: Metadata
) -> dict[str, Any]:
    """What this optimizer wants from the checkpoint: an empty tensor, or None, for each item."""
    parameters = dict(
        zip(_names_in_order(optimizer, parameter_names), _parameters(optimizer), strict=True)
    )
    wanted: dict[str, Any] = {f"{_prefix(name)}{_GROUPS}": None}
    prefix = f"{_prefix(name)}{_STATE}/"
    for key, stored in metadata.state_dict_metadata.items():
        if not key.startswith(prefix):
            continue
        parameter_name, _, entry = key.removeprefix(prefix).rpartition("/")
        if parameter_name in parameters or parameter_name.startswith("@"):
            like = parameters.get(parameter_name) if entry != "step" else None
            wanted[key] = _empty(stored, like)
    return wanted


def apply_optimizer(
    name: str, optimizer: Optimizer, parameter_names: dict[int, str], loaded: dict[str, Any]
) -> None:
    """Put back what ``capture_optimizer`` had captured.

    Raises:
        RestoreRefusedError: the optimizer has other parameters or groups.
    """
    names = _names_in_order(optimizer, parameter_names)
    others = dict(loaded[f"{_prefix(name)}{_GROUPS}"])
    groups = _groups_to_load(name, optimizer, names, others[_GROUPS])
    indices = {parameter: index for index, parameter in enumerate(names)}
    state: dict[Any, dict[str, Any]] = {}
    prefix = f"{_prefix(name)}{_STATE}/"
    for key, value in loaded.items():
        if key.startswith(prefix):
            parameter, _, entry = key.removeprefix(prefix).rpartition("/")
            index = indices.get(parameter, parameter.removeprefix("@"))
            state.setdefault(index, {})[entry] = value
    optimizer.load_state_dict({**others, _STATE: state, _GROUPS: groups})


def _groups_to_load(
    name: str, optimizer: Optimizer, names: list[str], saved: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = []
    at = 0
    for group in optimizer.param_groups:
        count = len(group["params"])
        here = names[at : at + count]
        there = saved[len(groups)]["params"] if len(groups) < len(saved) else []
        if here != there:
            raise RestoreRefusedError(
                f"{name}: parameter group {len(groups)} was saved with {len(there)} parameters "
                f"{there[:3]}…, and has {count} {here[:3]}…"
            )
        loaded = {key: _like(value, group.get(key)) for key, value in saved[len(groups)].items()}
        groups.append({**loaded, "params": list(range(at, at + count))})
        at += count
    if len(saved) != len(groups):
        raise RestoreRefusedError(
            f"{name}: saved with {len(saved)} parameter groups, and has {len(groups)}"
        )
    return groups


def _like(value: Any, current: Any) -> Any:
    """A learning rate that is a tensor goes where the present one is."""
    if isinstance(value, Tensor) and isinstance(current, Tensor):
        return value.to(current.device)
    return value


def _empty(stored: object, parameter: Tensor | None) -> Tensor | None:
    """Room for one item of state: placed like its parameter if it is shaped like it. (A step
    count stays on the CPU; ``load_state_dict`` moves it where the optimizer wants it.)"""
    if not isinstance(stored, TensorStorageMetadata):
        return None
    dtype = stored.properties.dtype
    if parameter is not None and stored.size == parameter.size():
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(stored.size, dtype=dtype)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _names_in_order(optimizer: Optimizer, parameter_names: dict[int, str]) -> list[str]:
    """Of every parameter, in the order in which ``state_dict`` numbers them. One that belongs to
    no module that is saved gets its number for a name."""
    return [
        parameter_names.get(id(parameter), f"#{index}")
        for index, parameter in enumerate(_parameters(optimizer))
    ]


def _prefix(name: str) -> str:
    return f"{OPTIMIZERS}/{name}/"
