"""The Trainer of Hugging Face Transformers.

    from drainfsm.frameworks.transformers import drain

    trainer = Trainer(args=TrainingArguments(save_strategy="no", …), …)
    trainer.train(resume_from_checkpoint=drain(trainer))

``drain`` puts a callback into the trainer, and returns what the requeue record names. A generation
holds one checkpoint of the Trainer's own (``checkpoint-STEPS``), written by the Trainer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import drainfsm
from drainfsm.errors import ConfigError, NotRestoredError
from drainfsm.frameworks import Drained
from drainfsm.frameworks._files import files_of, imported

__all__ = ["drain"]

log = logging.getLogger("drainfsm.frameworks.transformers")

_RANK_OF = re.compile(r"(?:__|rng_state_)(\d+)(?:_\d+\.distcp|\.pth)")


def drain(trainer: Any) -> str | None:
    """Drain what this ``Trainer`` trains. Returns what it must resume from; None: a fresh job.

    Call it once, right before ``trainer.train``. Without an agent it does nothing.

    Raises:
        ConfigError: what the trainer saves by itself does not go with it.
        RestoreRefusedError: the recorded generation cannot be continued here.
    """
    package = imported("transformers", extra="transformers")
    args = trainer.args
    session = drainfsm.attach(rank=args.process_index, world_size=args.world_size)
    if not session.job_id:
        return None
    made = type("DrainCallback", (_TrainerHooks, package.TrainerCallback), {})
    hooks: _TrainerHooks = made()
    return hooks.begin(trainer, session)


class _TrainerHooks:
    """What the callback does. It is the trainer's last one: what others do in a step is done
    before the step is saved.

    A step is done when the next one begins (or the next epoch): what the Trainer logs, evaluates
    and saves for it is behind it by then, and a resumed run leaves nothing out. That the samples
    of the next step are fetched already does no harm: the Trainer counts steps to find its place.
    """

    def begin(self, trainer: Any, session: drainfsm.Session) -> str | None:
        self._trainer = trainer
        self._session = session
        self._target: Path | None = None
        self._steps = 0
        self._phase = ExitStack()
        self._over = False
        self._checkpoint = session.own_checkpoint(
            save=self._save, load=self._load, shared=True, saver="transformers"
        )
        _refuse_other_savers(trainer.args, every_steps=self._checkpoint.every_steps)
        self._checkpoint.restore()
        self._done = 0
        trainer.add_callback(self)
        return None if self._target is None else str(self._target)

    # --- saving and restoring -------------------------------------------------------------------

    def _save(self, directory: Path, step: int) -> Iterator[str]:
        """The Trainer saves where ``output_dir`` says, and nothing there is rotated or pushed."""
        args = self._trainer.args
        before = args.output_dir, args.save_total_limit, args.push_to_hub
        args.output_dir, args.save_total_limit, args.push_to_hub = str(directory), None, False
        try:
            self._trainer._save_checkpoint(self._trainer.model_wrapped, trial=None)
        finally:
            args.output_dir, args.save_total_limit, args.push_to_hub = before
        return files_of(directory, rank=self._session.rank, rank_of=_RANK_OF)

    def _load(self, directory: Path, step: int) -> None:
        """The Trainer loads it, in ``train``: here is only remembered what."""
        self._steps = step + 1
        self._target = directory / f"checkpoint-{self._steps}"

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._over:
            raise ConfigError("a trainer is trained once: call drain(trainer) on a new Trainer")
        if self._target is not None and state.global_step != self._steps:
            raise NotRestoredError(
                f"{self._target} is committed, and training began at step {state.global_step}: "
                "call trainer.train(resume_from_checkpoint=drain(trainer))"
            )
        self._done = state.global_step

    # --- steps ----------------------------------------------------------------------------------

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_done(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_done(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._announce(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._announce(control)

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Training has ended; what follows may replace the model by the best one."""
        if "train_runtime" in (more.get("logs") or {}):
            self._step_done(state)
            self._close()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._close()

    def _announce(self, control: Any) -> None:
        self._phase.close()
        if control.should_evaluate and not self._over:
            self._phase.enter_context(self._session.phase("evaluation"))

    def _step_done(self, state: Any) -> None:
        self._phase.close()
        if self._over or state.global_step == self._done:
            return
        self._done = state.global_step
        step = state.global_step - 1
        if self._checkpoint.step_done(step):
            self._close()
            log.warning("drained after step %s: training ends here", step)
            raise Drained(step)

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._session.close()


def _refuse_other_savers(args: Any, *, every_steps: int) -> None:
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if every_steps and strategy not in ("no", "best"):
        raise ConfigError(
            f"save_strategy={strategy!r} and every_steps in [checkpoint] would both save: pass "
            "TrainingArguments(save_strategy='no'), or unset every_steps"
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise ConfigError("enable_jit_checkpoint saves at SIGTERM, and so does drainfsm: unset it")
    if args.save_only_model:
        raise ConfigError("save_only_model leaves nothing to resume from: unset it")
    if strategy not in ("no", "best") and args.process_index == 0:
        log.warning(
            "save_strategy=%r: a job that is lost goes on from what drainfsm has committed, and "
            "that is only drains: set every_steps in [checkpoint] and save_strategy='no'",
            strategy,
        )
