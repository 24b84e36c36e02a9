"""Megatron Core: drains saved and resumed by ``megatron.core.dist_checkpointing``.

    checkpoint = drain(session, model, optimizer, scheduler=scheduler, loader=loader)
    for step in range(checkpoint.restore(), steps):     # session = drainfsm.attach()
        ...
        if checkpoint.step_done(step):                  # after every optimizer step
            break

and ``session.close()`` after the loop. Megatron keeps model, optimizer and scheduler in its files;
beside them stand each rank's random states and the position of ``loader``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drainfsm.checkpoint import OwnCheckpoint
from drainfsm.errors import ConfigError
from drainfsm.frameworks._engine_files import EngineFiles, guessed_bytes
from drainfsm.frameworks._files import imported
from drainfsm.session import Session, Stateful

__all__ = ["drain"]

SAVER = "megatron"
DIRECTORY = "megatron"
"""Of Megatron's files: it refuses a directory that is not empty."""


def drain(
    session: Session,
    model: Any,
    optimizer: Any,
    *,
    scheduler: Stateful | None = None,
    loader: Stateful | None = None,
    metadata: Mapping[str, Any] | None = None,
    **objects: Stateful,
) -> OwnCheckpoint:
    """Collective: every rank calls it, after ``initialize_model_parallel``.

    ``model``: what has ``sharded_state_dict``, or a list of its chunks. ``metadata``: as for
    ``optimizer.sharded_state_dict``, where that wants some. ``objects``: what else must come back.

    Raises:
        ConfigError: a part cannot be saved.
    """
    state = _State(model, optimizer, scheduler, dict(metadata or {}))
    random = _TensorParallelRandom()
    files = EngineFiles(
        session,
        write=state.write,
        read=state.read,
        objects={"loader": loader, "tensor_parallel_random": random, **objects},
    )
    size = sum(guessed_bytes(chunk, world_size=session.world_size) for chunk in state.chunks)
    return files.checkpoint(saver=SAVER, save_bytes=size)


class _State:
    """What is Megatron's, under the names of Megatron's own checkpoints."""

    def __init__(
        self, model: Any, optimizer: Any, scheduler: Any, metadata: dict[str, Any]
    ) -> None:
        self.chunks: Sequence[Any] = model if isinstance(model, list | tuple) else [model]
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._metadata = metadata
        self._serialization = imported(
            "megatron.core.dist_checkpointing.serialization", extra="megatron"
        )
        imported("psutil", extra="megatron")  # or what writes for Megatron ends, and is waited for
        for part in (*self.chunks, optimizer):
            if not hasattr(part, "sharded_state_dict"):
                raise ConfigError(
                    f"drain() got a {type(part).__name__}, which has no sharded_state_dict(): give "
                    "it a MegatronModule, and the optimizer of get_megatron_optimizer(...)"
                )

    def write(self, directory: Path) -> None:
        own = directory / DIRECTORY
        own.mkdir(exist_ok=True)
        self._serialization.save(self._sharded(loading=False), str(own))

    def read(self, directory: Path) -> None:
        wanted = self._sharded(loading=True)
        loaded = self._serialization.load(wanted, str(directory / DIRECTORY))
        for name, chunk in self._named().items():
            chunk.load_state_dict(loaded[name])
        self._optimizer.load_state_dict(loaded["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(loaded["opt_param_scheduler"])

    def _named(self) -> dict[str, Any]:
        if len(self.chunks) == 1:
            return {"model": self.chunks[0]}
        return {f"model{number}": chunk for number, chunk in enumerate(self.chunks)}

    def _sharded(self, *, loading: bool) -> dict[str, Any]:
        model = {name: chunk.sharded_state_dict() for name, chunk in self._named().items()}
        more = {"metadata": self._metadata} if self._metadata else {}
        of_model = model["model"] if len(model) == 1 else model
        state = {
            **model,
            "optimizer": self._optimizer.sharded_state_dict(of_model, is_loading=loading, **more),
        }
        if self._scheduler is not None:
            state["opt_param_scheduler"] = self._scheduler.state_dict()
        return state


class _TensorParallelRandom:
    """The generators that Megatron keeps apart: on ranks that share a layer they differ."""

    def __init__(self) -> None:
        self._random = imported("megatron.core.tensor_parallel.random", extra="megatron")

    def state_dict(self) -> dict[str, Any]:
        return dict(self._random.get_cuda_rng_tracker().get_states())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random.get_cuda_rng_tracker().set_states(state)
