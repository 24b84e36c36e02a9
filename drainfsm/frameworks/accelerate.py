"""Hugging Face Accelerate.

    from drainfsm.frameworks.accelerate import drain

    loop = drain(accelerator)  # after accelerator.prepare(…)
    for epoch in loop.epochs(3):
        for batch in loop.batches(train_loader):
            with accelerator.accumulate(model):
                …

``epochs`` begins at what the requeue record names, and ``batches`` after the samples that were
trained on. A generation is what ``accelerator.save_state`` writes, and of each rank its random
states and its place. A drain leaves both loops by ``drainfsm.frameworks.Drained``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drainfsm
from drainfsm.checkpoint.samplers import order_is_lost
from drainfsm.errors import ConfigError
from drainfsm.frameworks import Drained
from drainfsm.frameworks._files import files_of, imported

__all__ = ["Loop", "drain"]

log = logging.getLogger("drainfsm.frameworks.accelerate")

_RANK_OF = re.compile(r"(?:__|rank|random_states_)(\d+)(?:_\d+\.distcp|\.pt|\.pkl)")


def drain(accelerator: Any) -> Loop:
    """The loops of a training that can be drained and resumed. Call it once, after
    ``accelerator.prepare`` of everything that must come back.

    Without an agent the loops run as if they were not there.

    Raises:
        ConfigError: nothing is prepared yet.
    """
    imported("accelerate", extra="accelerate")
    return Loop(accelerator)


class Loop:
    """Epochs and batches of one training; ``drain`` makes it."""

    def __init__(self, accelerator: Any) -> None:
        if not accelerator._models:
            raise ConfigError("call drain(accelerator) after accelerator.prepare(model, …)")
        self._accelerator = accelerator
        self.session = drainfsm.attach(
            rank=accelerator.process_index, world_size=accelerator.num_processes
        )
        """``loop.session.phase("evaluation")`` announces what takes longer than a step."""

        self._epoch = 0
        self.batches_done = 0
        """Of the epoch, those that are done."""

        self._random: dict[str, Any] | None = None
        """Restored, and to be set where the numbers of the next step are drawn."""

        self._running = False
        self._ended = True
        """The epoch's batches are at their end."""

        self._due = False
        """The optimizer has stepped, and the step is done when the epoch is."""

        self._stepped = False
        """An optimizer has, for the batch that is being trained on."""

        for optimizer in accelerator._optimizers:
            inner: Any = getattr(optimizer, "optimizer", None)
            if hasattr(inner, "register_step_post_hook"):  # an engine's optimizer is no torch one
                inner.register_step_post_hook(self._on_optimizer_step)
        self._saving = False
        self._checkpoint = self.session.own_checkpoint(
            save=self._save, load=self._load, shared=True, saver="accelerate"
        )
        self._next = 0
        accelerator.register_save_state_pre_hook(self._saved_by_job)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs to train, up to ``count``. When they are at an end, the last step is saved.

        Raises:
            RestoreRefusedError: the recorded generation cannot be continued here.
            Drained: a drain has ended the training.
        """
        self._next = self._checkpoint.restore()
        self._running = True
        while self._epoch < count:
            self._ended = False
            yield self._epoch
            self._epoch_done()
        self.close()

    def close(self) -> None:
        """Save the last step: only where you leave ``epochs`` before its end, by ``break``, say."""
        self._running = False
        self.session.close()

    def batches(self, loader: Any) -> Iterator[Any]:
        """The batches of this epoch that are not trained on yet. ``loader`` was prepared.

        Raises:
            ConfigError: a resumed epoch could not be told to have the same order.
            Drained: a drain has ended the training.
        """
        self._check(loader)
        rest = self._rest_of(loader)
        if self.batches_done == 0:
            self._set_random()  # as before an iteration begins, which draws from them
        for batch in rest:
            self._set_random()
            self._stepped = False
            try:
                yield batch
            except GeneratorExit:  # the loop was left by `break`: maybe after the batch's step
                self._due = self._stepped
                raise
            self.batches_done += 1
            if self._accelerator.sync_gradients:
                self._due = True
                if not self._accelerator.gradient_state.end_of_dataloader:
                    self._step_done()
        self._ended = True

    def _on_optimizer_step(self, *_: Any) -> None:
        self._stepped = True

    def _rest_of(self, loader: Any) -> Any:
        rest = loader
        if self.batches_done:
            rest = self._accelerator.skip_first_batches(loader, self.batches_done)
        if hasattr(rest, "set_epoch"):
            rest.set_epoch(self._epoch)
        return rest

    def _epoch_done(self) -> None:
        if not self._ended:
            log.warning("epoch %s was left before its batches were at an end", self._epoch)
        self._epoch += 1
        self.batches_done = 0
        if self._due:
            self._step_done()

    def _step_done(self) -> None:
        self._due = False
        step = self._next
        self._next += 1
        if self._checkpoint.step_done(step):
            self.session.close()
            log.warning("drained after step %s: training ends here", step)
            raise Drained(step)

    def _check(self, loader: Any) -> None:
        if not self._running or self._ended:
            raise ConfigError(
                "call batches(loader) once in an epoch, inside `for epoch in loop.epochs(…)`"
            )
        if getattr(loader, "use_stateful_dataloader", False):
            raise ConfigError(
                "batches(loader) finds its place by itself: leave use_stateful_dataloader off"
            )
        if order_is_lost(loader):
            raise ConfigError(
                "a resumed run could not repeat the order of this loader: make the Accelerator "
                "with DataLoaderConfiguration(use_seedable_sampler=True)"
            )

    # --- saving and restoring -------------------------------------------------------------------

    def _save(self, directory: Path, step: int) -> Iterator[str]:
        from drainfsm.frameworks._rank_state import write_rank_state

        self._saving = True
        try:
            self._accelerator.save_state(str(directory))
            self._accelerator.wait_for_everyone()  # every rank writes the gradient scaler's file
        finally:
            self._saving = False
        write_rank_state(directory, self.session.rank, epoch=self._epoch, batches=self.batches_done)
        return files_of(directory, rank=self.session.rank, rank_of=_RANK_OF)

    def _load(self, directory: Path, step: int) -> None:
        from drainfsm.frameworks._rank_state import read_rank_state

        self._accelerator.load_state(str(directory))
        own = read_rank_state(directory, self.session.rank)
        place = own or read_rank_state(directory, 0)  # the job has more ranks than before
        self._epoch, self.batches_done = place["epoch"], place["batches"]
        self._random = own.get("random")

    def _set_random(self) -> None:
        from drainfsm.frameworks._rank_state import set_random_state

        if self._random is not None:
            set_random_state(self._random)
        self._random = None

    def _saved_by_job(self, models: Any, weights: Any, directory: str) -> None:
        if self._checkpoint.every_steps and not self._saving:
            raise ConfigError(
                "accelerator.save_state(…) and every_steps in [checkpoint] both save: leave the "
                "call away, or unset every_steps"
            )
