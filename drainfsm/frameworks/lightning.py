"""PyTorch Lightning.

    from drainfsm.frameworks.lightning import drain

    trainer = Trainer(enable_checkpointing=False, …)
    drain(trainer)
    trainer.fit(model, StatefulDataLoader(…))

``drain`` puts a callback into the trainer, and has ``fit`` begin at what the requeue record names.
A generation is a checkpoint of Lightning's own (``lightning.ckpt``: a file, or a directory where
the strategy saves shards), and of each rank its random states and the position of its data.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import drainfsm
from drainfsm.checkpoint.samplers import order_is_lost, samplers
from drainfsm.errors import ConfigError, NotRestoredError
from drainfsm.frameworks import Drained
from drainfsm.frameworks._files import files_of, imported

__all__ = ["drain"]

log = logging.getLogger("drainfsm.frameworks.lightning")

CHECKPOINT = "lightning.ckpt"
_RANK_OF = re.compile(r"(?:__|rank)(\d+)(?:_\d+\.distcp|\.pt)")


def drain(trainer: Any, *, data_restarts: bool = False) -> None:
    """Drain what this ``Trainer`` fits, and resume it. Call it once, right before ``trainer.fit``.

    Without an agent it does nothing. ``data_restarts``: where a drain stops amid an epoch, its data
    may begin anew; else a loader without a position that can be saved is refused.

    Raises:
        ConfigError: the trainer's launcher, or a checkpoint callback, does not go with it.
        RestoreRefusedError: the recorded generation cannot be continued here.
    """
    package = imported(type(trainer).__module__.partition(".trainer")[0], extra="lightning")
    _check_launcher(trainer)
    session = drainfsm.attach(
        rank=trainer.global_rank,
        world_size=trainer.world_size,
        local_world_size=trainer.num_devices,
    )
    if not session.job_id:
        return
    made = type("DrainCallback", (_FitHooks, package.callbacks.Checkpoint), {})
    hooks: _FitHooks = made()
    hooks.begin(trainer, session, package, data_restarts=data_restarts)


def _check_launcher(trainer: Any) -> None:
    launcher = trainer.strategy.launcher
    if any(kind.__name__ == "_MultiProcessingLauncher" for kind in type(launcher).__mro__):
        raise ConfigError(
            f"{type(launcher).__name__} starts ranks that have no session: start the script with "
            "torchrun, or with Trainer(strategy='ddp')"
        )


class _FitHooks:
    """What the callback does. It is the trainer's last one, with those that save: what others do
    at the end of a step is done before the step is saved."""

    def begin(
        self, trainer: Any, session: drainfsm.Session, package: Any, *, data_restarts: bool
    ) -> None:
        self._trainer = trainer
        self._session = session
        self._saving_callbacks = package.callbacks.Checkpoint
        self._data_restarts = data_restarts
        self._target: Path | None = None
        """The directory of the generation that is restored."""

        self._loaded: dict[str, Any] = {}
        self._generation = ""
        self._loops: Any = None
        self._between_epochs = False
        """The next epoch has been announced to the callbacks, and nothing else of it has begun."""

        self._due = ""
        """The optimizer has stepped, and the step is done after this: ``validation``, ``epoch``."""

        self._phase = ExitStack()
        self._over = False
        self._checkpoint = session.own_checkpoint(
            save=self._save, load=self._load, shared=True, saver="lightning"
        )
        self._next = self._checkpoint.restore()
        self._stepped = 0
        self._refuse_second_saver()
        self._keep_own_signals()
        trainer.callbacks = [*trainer.callbacks, self]
        if self._target is not None:
            trainer.ckpt_path = str(self._target / CHECKPOINT)

    # --- saving and restoring -------------------------------------------------------------------

    def _save(self, directory: Path, step: int) -> Iterator[str]:
        from drainfsm.frameworks._rank_state import write_rank_state

        self._generation = directory.name
        self._trainer.save_checkpoint(str(directory / CHECKPOINT))
        write_rank_state(directory, self._session.rank, loops=self._loops)
        return files_of(directory, rank=self._session.rank, rank_of=_RANK_OF)

    def _load(self, directory: Path, step: int) -> None:
        """Lightning loads it, in ``fit``: here is only remembered what."""
        from drainfsm.frameworks._rank_state import read_rank_state

        self._target = directory
        self._loaded = read_rank_state(directory, self._session.rank)

    def state_dict(self) -> dict[str, Any]:
        return {"generation": self._generation}

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self._loops = checkpoint["loops"]
        if self._between_epochs:  # Lightning would go on at the end of the epoch that is over
            for progress in self._loops["fit_loop"]["epoch_progress"].values():
                progress["ready"] -= 1

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        """Lightning keeps the loops' state of rank 0, and with it the position of that rank's
        data: each rank gets its own."""
        if "loops" in self._loaded:
            checkpoint["loops"] = self._loaded["loops"]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generation = state["generation"]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._forget_path()
        if self._over:
            raise ConfigError("a trainer is fitted once: call drain(trainer) on a new Trainer")
        if self._target is not None and self._generation != self._target.name:
            raise NotRestoredError(
                f"{self._target.name} is committed, and `fit` began without it: leave ckpt_path= "
                "away, since drain(trainer) has set it"
            )
        self._stepped = trainer.global_step
        if not self._data_restarts:
            _refuse_lost_position(trainer)
        if "loops" in self._loaded:
            self._find_place(trainer.fit_loop)
        self._take_signals_back()

    def _forget_path(self) -> None:
        """Or a later ``validate`` or ``test`` of this trainer would load it."""
        self._trainer.ckpt_path = None

    def _find_place(self, loop: Any) -> None:
        """Lightning began to iterate before it told the samplers the epoch, and a resumed epoch
        would have the order of the first one."""
        from drainfsm.frameworks._rank_state import set_random_state

        loaders = loop._combined_loader
        for sampler in [one for loader in loaders.flattened for one in samplers(loader)]:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(loop.epoch_progress.current.processed)
        if loop.restarting:
            states = self._loaded["loops"]["fit_loop"]["state_dict"].get("combined_loader")
            if states:
                loaders._load_state_dicts(states)
        else:  # a new epoch: its iteration draws from the random states
            set_random_state(self._loaded.pop("random"))
        iter(loop._data_fetcher)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        from drainfsm.frameworks._rank_state import set_random_state

        if "random" in self._loaded:  # now: the loader drew from them when its iteration began
            set_random_state(self._loaded["random"])
        self._loaded = {}

    # --- steps ----------------------------------------------------------------------------------

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._stepped:
            return  # accumulating
        self._stepped = trainer.global_step
        self._due = _what_follows(trainer)
        if not self._due:
            self._step_done()
        elif self._due == "epoch":
            self._phase.enter_context(self._session.phase("end of epoch"))

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if not self._over:
            self._phase.enter_context(self._session.phase("validation"))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._phase.close()
        if self._due == "validation":
            self._step_done()

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if self._due:
            self._between_epochs = True
            self._step_done()
            self._between_epochs = False

    def on_train_end(self, trainer: Any, module: Any) -> None:
        if self._due:
            self._step_done()
        self._close()

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Of a job that had nothing left to train, no other method was called."""
        self._forget_path()
        self._close()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._close()

    def _step_done(self) -> None:
        self._due = ""
        self._phase.close()
        step = self._next
        self._next += 1
        if not self._checkpoint.step_done(step):
            return
        self._close()
        trainer = self._trainer
        trainer.callbacks = [
            callback
            for callback in trainer.callbacks
            if not isinstance(callback, self._saving_callbacks)  # some save at an exception
        ]
        log.warning("drained after step %s: fit ends here", step)
        raise Drained(step)

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._session.close()

    # --- what Lightning does by itself ----------------------------------------------------------

    def _refuse_second_saver(self) -> None:
        if not self._checkpoint.every_steps:
            return
        for callback in self._trainer.callbacks:
            if isinstance(callback, self._saving_callbacks) and not getattr(
                callback, "monitor", None
            ):
                raise ConfigError(
                    f"{type(callback).__name__} and every_steps in [checkpoint] would both save: "
                    "pass Trainer(enable_checkpointing=False), give it a monitor, or unset "
                    "every_steps"
                )

    def _keep_own_signals(self) -> None:
        """Lightning's handlers end ranks by an exception at steps of their own, broadcast from
        within a handler, and requeue under Slurm: all of that is the agent's business."""
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        connector: Any = getattr(self._trainer, "_signal_connector", None)
        if hasattr(connector, "register_signal_handlers"):
            connector.register_signal_handlers = _register_nothing

    def _take_signals_back(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                log.warning("Lightning's handler for %s is replaced: the agent acts on it", number)
                signal.signal(number, handler)


_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def _register_nothing() -> None:
    """In place of Lightning's ``register_signal_handlers``."""


def _what_follows(trainer: Any) -> str:
    """What Lightning still does for the step whose last batch has just ended, before the next one
    begins: after it the step is done, so that a resumed run does not leave it out."""
    if trainer.is_last_batch or trainer.should_stop:
        return "epoch"
    if -1 < trainer.max_steps <= trainer.global_step:
        return "epoch"
    loop = trainer.fit_loop
    by_time = getattr(trainer, "_val_check_time_interval", None) is not None
    if not by_time and loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
        return "validation"
    return ""


def _refuse_lost_position(trainer: Any) -> None:
    for loader in trainer.fit_loop._combined_loader.flattened:
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise ConfigError(
                f"{type(loader).__name__} has no position that can be saved, so a resumed run "
                "would begin its epoch's data anew: pass a StatefulDataLoader of torchdata, or "
                "accept that with drain(trainer, data_restarts=True)"
            )
        if order_is_lost(loader):
            raise ConfigError(
                "Lightning has wrapped the loader's shuffle=True in a sampler of its own, whose "
                "order cannot be repeated by a resumed run: pass sampler=DistributedSampler(…)"
            )
