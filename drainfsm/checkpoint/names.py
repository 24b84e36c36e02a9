"""Names of parameters and buffers that do not depend on how a module is wrapped."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Attributes under which torch.compile and activation checkpointing keep what they wrap."""

_EXTRA_STATE = "_extra_state"
"""In a state dict, what ``get_extra_state`` of a module returned; no attribute of it."""


def bare_name(module: nn.Module, name: str) -> str:
    """``name`` without the segments of wrappers: a DDP model and a plain one name alike."""
    segments = []
    at: object = module
    for segment in name.split("."):
        wraps = segment in _WRAPPERS or (
            segment == "module" and isinstance(at, DistributedDataParallel)
        )
        if not wraps:
            segments.append(segment)
        if segment != _EXTRA_STATE:
            at = getattr(at, segment)
    return ".".join(segments)


def parameter_names(modules: dict[str, nn.Module]) -> dict[int, str]:
    """Identity of each parameter of the modules to its name: module, dot, bare name."""
    return {
        id(parameter): f"{module_name}.{bare_name(module, name)}"
        for module_name, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def buffer_names(module: nn.Module) -> frozenset[str]:
    return frozenset(bare_name(module, name) for name, _ in module.named_buffers())


def saved_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and the buffers that a state dict has."""
    yield from module.named_parameters()
    for prefix, part in module.named_modules():
        for name, buffer in part.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in part._non_persistent_buffers_set:
                yield name, buffer
