"""DeepSpeed: drains saved and resumed by the engine's own checkpoints.

    checkpoint = drain(session, engine, loader=loader)  # session = drainfsm.attach()
    start = checkpoint.restore()                        # optimizer steps done so far
    ...
        engine.step()
        if checkpoint.step_done():                      # after every engine.step()
            break

and ``session.close()`` after the loop. The engine keeps model, optimizer, learning rate and loss
scale in its files; beside them stand each rank's random state and the position of ``loader``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drainfsm.errors import ConfigError, RestoreRefusedError
from drainfsm.frameworks._engine_files import EngineFiles, guessed_bytes
from drainfsm.session import Session, Stateful

__all__ = ["DeepSpeedCheckpoint", "drain"]

SAVER = "deepspeed"
TAG = "engine"
"""Of the engine's checkpoint, which is the only one in its directory."""


def drain(
    session: Session, engine: Any, *, loader: Stateful | None = None, **objects: Stateful
) -> DeepSpeedCheckpoint:
    """Collective: every rank calls it, after ``deepspeed.initialize``.

    ``loader``, ``objects``: what must come back and is not the engine's.

    Raises:
        ConfigError: the engine writes its checkpoints where they cannot be committed, or an object
            cannot be saved.
    """
    return DeepSpeedCheckpoint(session, engine, {"loader": loader, **objects})


class DeepSpeedCheckpoint:
    """Counts the engine's optimizer steps, and has it save and load."""

    def __init__(self, session: Session, engine: Any, objects: dict[str, Any]) -> None:
        _check(engine)
        self._engine = engine
        self._seen: int = engine.global_steps
        """Optimizer steps that ``step_done`` has heard of."""

        files = EngineFiles(session, write=self._write, read=self._read, objects=objects)
        self._checkpoint = files.checkpoint(
            saver=SAVER, save_bytes=guessed_bytes(engine.module, world_size=session.world_size)
        )

    def restore(self) -> int:
        """Optimizer steps that are done: those of the checkpoint that the requeue record names; on
        a fresh job those of the engine, which may have loaded one by itself. Collective.

        Raises:
            RestoreRefusedError: the recorded checkpoint cannot be continued here.
            ManifestMismatchError: it is not what it was when it was committed.
        """
        self._checkpoint.restore()
        self._seen = self._engine.global_steps
        return self._seen

    def step_done(self) -> bool:
        """Call after every ``engine.step()``, on every rank. True: leave the loop now. While
        gradients are accumulated nothing happens: a drain is saved after an optimizer step.

        Raises:
            NotRestoredError: the committed checkpoint holds this step already.
            ConfigError: an optimizer step went by without a call.
        """
        done: int = self._engine.global_steps
        if done == self._seen:
            return False
        if done != self._seen + 1:
            raise ConfigError(
                f"the engine went from {self._seen} to {done} optimizer steps between two calls of "
                "step_done(): call it after every engine.step()"
            )
        self._seen = done
        return self._checkpoint.step_done(done - 1)

    def _write(self, directory: Path) -> None:
        self._engine.save_checkpoint(str(directory), tag=TAG, save_latest=False)

    def _read(self, directory: Path) -> None:
        loaded, _ = self._engine.load_checkpoint(str(directory), tag=TAG)
        if loaded is None:
            raise RestoreRefusedError("the engine did not take its checkpoint; its log says why")


def _check(engine: Any) -> None:
    if not hasattr(engine, "save_checkpoint"):
        raise ConfigError(
            f"drain() got a {type(engine).__name__}: give it the engine, which is the first thing "
            "that deepspeed.initialize(...) returns"
        )
    if engine.use_node_local_storage():
        raise ConfigError(
            'DeepSpeed is set to "use_node_local_storage", and the replacement may run on other '
            "nodes: take it out of the engine's configuration"
        )
    decoupled = getattr(engine.checkpoint_engine, "is_decoupled", bool)  # older ones never are
    if decoupled():
        raise ConfigError(
            "DeepSpeed is set to write its checkpoints in the background, so they are not complete "
            'when they are to be committed: take "decoupled" out of "writer" in the "checkpoint" '
            'of the engine\'s configuration, and "datastates_ckpt" out of it'
        )
