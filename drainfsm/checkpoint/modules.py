"""Modules in a checkpoint: parameters and buffers under names that no wrapper changes.

Plain modules, DistributedDataParallel, torch.compile and fully_shard (FSDP2) are interchangeable.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from drainfsm.checkpoint.names import bare_name, buffer_names, saved_tensors
from drainfsm.checkpoint.serialised import Serialised
from drainfsm.errors import ConfigError, RestoreRefusedError

PARAMETERS = "params"
BUFFERS = "buffers"
"""Kept apart, because replicas of a buffer may differ: DDP takes the first rank's, and so do we."""


def check_module(name: str, module: nn.Module) -> None:
    """Raises:
    ConfigError: the module is wrapped in a way that cannot be saved here.
    """
    if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
        raise ConfigError(
            f"checkpoint part {name!r} uses FullyShardedDataParallel (FSDP1), whose parameters "
            "have no names of their own: use torch.distributed.fsdp.fully_shard"
        )
    for key, tensor in saved_tensors(module):
        if kind := _odd(tensor):
            raise ConfigError(
                f"checkpoint part {name!r}: {key} is no ordinary tensor ({kind}), and only those "
                "are saved: keep what it is made of in buffers, or register it with "
                "persistent=False and make it anew"
            )


def _odd(tensor: Tensor) -> str:
    """What keeps it from being written as rows of numbers, and read into its place again."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    if tensor.is_inference():
        return "made in inference mode"
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    if is_traceable_wrapper_subclass(tensor) and not isinstance(tensor, DTensor):
        return type(tensor).__name__
    return ""


def capture_module(name: str, module: nn.Module) -> dict[str, Any]:
    """Flat: references to the module's tensors, and its extra state serialised."""
    buffers = buffer_names(module)
    captured: dict[str, Any] = {}
    for wrapped_key, value in module.state_dict(keep_vars=True).items():
        key = bare_name(module, wrapped_key)
        kind = PARAMETERS if isinstance(value, Tensor) and key not in buffers else BUFFERS
        kept = value if isinstance(value, Tensor) else Serialised(value)
        captured[f"{kind}/{name}/{key}"] = kept
    return captured


def apply_module(name: str, module: nn.Module, loaded: dict[str, Any]) -> None:
    """Put back what ``capture_module`` of a module of the same shape had captured.

    Raises:
        RestoreRefusedError: the module does not take it.
    """
    prefixes = (f"{PARAMETERS}/{name}/", f"{BUFFERS}/{name}/")
    state = {
        key.removeprefix(prefix): value
        for prefix in prefixes
        for key, value in loaded.items()
        if key.startswith(prefix)
    }
    try:
        set_model_state_dict(module, state, options=StateDictOptions(strict=True))
    except (RuntimeError, KeyError, ValueError) as error:
        raise RestoreRefusedError(f"{name} does not take its state: {error}") from error
