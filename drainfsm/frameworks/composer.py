"""MosaicML Composer.

    hook = drain()
    trainer = Trainer(..., callbacks=[hook], load_path=hook.load_path)
    trainer.fit()

A generation is a checkpoint of Composer's own, which has ``fit`` spin its data loader to the batch
where it stood. Composer's ``save_interval`` and ``autoresume`` stay off: the requeue record says
what to resume from.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import drainfsm
from drainfsm.errors import ConfigError, NotRestoredError
from drainfsm.frameworks import Drained

__all__ = ["drain"]

NAME = "composer.pt"


def drain() -> Any:
    """A callback for one ``Trainer``, on every rank; make it after ``composer`` is imported, and
    before the trainer. Its ``load_path`` goes to the trainer. Without an agent it does nothing.

    Raises:
        RestoreRefusedError: the recorded generation cannot be continued here.
        ManifestMismatchError: it is not what it was when it was committed.
    """
    composer = import_module("composer")
    session = drainfsm.attach()
    return type("DrainCallback", (_Hooks, composer.Callback), {})(session)


class _Hooks:
    """What the callback does at Composer's events."""

    def __init__(self, session: drainfsm.Session) -> None:
        self.load_path: str | None = None
        """For ``Trainer(load_path=…)``; None: there is nothing to resume from."""

        self._session = session
        self._state: Any = None
        self._validation = ExitStack()
        self._checkpoint = session.own_checkpoint(
            save=self._save, load=self._load, shared=True, saver="composer"
        )
        self._first = self._checkpoint.restore()

    # --- saving and restoring -------------------------------------------------------------------

    def _save(self, directory: Path, step: int) -> list[str]:
        """Composer writes one file, of all ranks, on rank 0, and waits until it is there."""
        save = import_module("composer.utils.checkpoint").save_checkpoint
        save(self._state, filename=str(directory / NAME))
        return [NAME] if self._session.rank == 0 else []

    def _load(self, directory: Path, step: int) -> None:
        """Composer loads it when the trainer is made: here is only remembered what."""
        self.load_path = str(directory / NAME)

    # --- Composer's events ----------------------------------------------------------------------

    def after_load(self, state: Any, logger: Any) -> None:
        """The trainer is made.

        Raises:
            NotRestoredError: it did not take ``load_path``.
            ConfigError: it would save by itself as well, or in a way that cannot be given back.
        """
        self._state = state
        if not self._session.job_id:
            return
        if self._first and state.timestamp.batch.value != self._first:
            raise NotRestoredError(
                f"{self._first} batches are committed, and the trainer begins after "
                f"{state.timestamp.batch.value}: pass it load_path=hook.load_path, and no "
                "autoresume"
            )
        if state.fsdp_sharded_state_dict_enabled:
            raise ConfigError(
                "Composer is set to write sharded state dicts, which drain() cannot give back: "
                "set state_dict_type to 'full'"
            )
        saver = import_module("composer.callbacks").CheckpointSaver
        if any(isinstance(callback, saver) for callback in state.callbacks):
            raise ConfigError(
                "Composer is set to save by itself as well: leave save_folder and CheckpointSaver "
                "out (periodic saves: every_steps in [checkpoint] of drainfsm)"
            )

    def eval_start(self, state: Any, logger: Any) -> None:
        self._validation.enter_context(self._session.phase("validation"))

    def eval_end(self, state: Any, logger: Any) -> None:
        self._validation.close()

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        """A batch is done, and the evaluation that was due after it.

        Raises:
            Drained: the drain is over, and the rank is to leave.
        """
        step = state.timestamp.batch.value - 1
        if self._checkpoint.step_done(step):
            self._session.close()
            raise Drained(step)

    def fit_end(self, state: Any, logger: Any) -> None:
        self._session.close()

    def close(self, state: Any, logger: Any) -> None:
        if sys.exc_info()[0] is None:
            self._session.close()
