"""torchtitan: drains of its Trainer.

    trainer = config.build()
    drain(trainer)
    trainer.train()

``drain`` takes the place of the trainer's checkpointer, and saves what that would by
``torch.distributed.checkpoint``: model parts, optimizers, schedulers and train state, all of them
``Stateful``. Beside that stand each rank's random state and data position. torchtitan's own saving
stays off (``checkpoint.enable``); to load weights first, set ``checkpoint.load_only`` with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import drainfsm
from drainfsm.errors import ConfigError
from drainfsm.frameworks import Drained
from drainfsm.frameworks._engine_files import EngineFiles, guessed_bytes
from drainfsm.frameworks._files import imported

__all__ = ["drain"]

SAVER = "torchtitan"
DIRECTORY = "torchtitan"


def drain(trainer: Any) -> None:
    """Drain what this ``Trainer`` trains, and resume it. Collective: every rank calls it, right
    before ``trainer.train()``. Without an agent it does nothing.

    Raises:
        ConfigError: the trainer would save by itself as well, or was given before.
    """
    if isinstance(trainer.checkpointer, _Checkpointer):
        raise ConfigError("drain(trainer) was called before: once is enough")
    session = drainfsm.attach()
    if not session.job_id:
        return
    settings = trainer.config.checkpoint
    if settings.enable and not settings.load_only:
        raise ConfigError(
            "torchtitan is set to save and resume by itself: take checkpoint.enable out of its "
            "configuration (periodic saves: every_steps in [checkpoint] of drainfsm), or set "
            "checkpoint.load_only"
        )
    trainer.checkpointer = _Checkpointer(trainer, session)


class _Checkpointer:
    """Has the methods of torchtitan's checkpoint manager that the trainer calls."""

    enable = True
    save_future = None

    def __init__(self, trainer: Any, session: drainfsm.Session) -> None:
        self._own = trainer.checkpointer
        self._session = session
        self._validates_at = -1
        """The step that is done once its validation is."""

        validator = getattr(trainer, "validator", None)
        if validator is not None:
            self._validate = validator.validate
            self._should_validate = validator.should_validate
            validator.validate = self._validated
        self._validating = validator is not None
        titan = imported("torchtitan.components.checkpoint", extra="torchtitan")
        self._model = titan.ModelWrapper(trainer.model_parts)
        self._others = {
            titan.OPTIMIZER: trainer.optimizers,
            titan.LR_SCHEDULER: trainer.lr_schedulers,
            titan.TRAIN_STATE: trainer,
        }
        files = EngineFiles(
            session, write=self._write, read=self._read, objects={"loader": trainer.dataloader}
        )
        sizes = (guessed_bytes(part, world_size=session.world_size) for part in trainer.model_parts)
        self._checkpoint = files.checkpoint(saver=SAVER, save_bytes=sum(sizes))

    def _state(self) -> dict[str, Any]:
        """As torchtitan lays it out: the model's tensors beside the other objects."""
        return {**self._model.state_dict(), **self._others}

    def _write(self, directory: Path) -> None:
        with torch.no_grad():
            save(self._state(), checkpoint_id=directory / DIRECTORY)

    def _read(self, directory: Path) -> None:
        with torch.no_grad():
            state = self._state()
            load(state, checkpoint_id=directory / DIRECTORY)
            self._model.load_state_dict(state)

    def load(self, step: int = -1) -> bool:
        """What was committed, or on a fresh job what torchtitan is told to begin with."""
        return self._checkpoint.restore() > 0 or bool(self._own.load(step))

    def save(self, curr_step: int, last_step: bool = False) -> bool:  # noqa: FBT001, FBT002 - torchtitan's
        """After every optimizer step. torchtitan counts them from 1.

        Raises:
            Drained: the drain is over, and the rank is to leave.
        """
        if self._validating and self._should_validate(curr_step):
            self._validates_at = curr_step
        else:
            self._step_done(curr_step, last=last_step)
        return False

    def _validated(self, model_parts: Any, step: int) -> None:
        with self._session.phase("validation"):
            self._validate(model_parts, step)
        if self._validates_at == step:
            self._step_done(step, last=False)

    def _step_done(self, step: int, *, last: bool) -> None:
        if self._checkpoint.step_done(step - 1):
            self._session.close()
            raise Drained(step - 1)
        if last:
            self._session.close()

    def maybe_wait_for_staging(self) -> None:
        """What is saved is written before a step is done."""

    def maybe_wait_for_saving(self) -> None:
        """``close`` waits."""

    def close(self) -> None:
        """Called by ``trainer.close()``."""
        self._session.close()
        self._own.close()
