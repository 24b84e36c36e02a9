"""Where the training loop stands: after what was restored, and which of its steps are not saved
yet."""

from __future__ import annotations

import logging
import sys

from drainfsm.checkpoint.port import RankPort
from drainfsm.errors import NotRestoredError

log = logging.getLogger("drainfsm.checkpoint")

REWIND = "set rewind = true in [checkpoint] to train on from before the checkpoint"


class Progress:
    """One rank's loop. An older step never silently replaces a committed one."""

    def __init__(self, port: RankPort) -> None:
        self.last_step = -1
        """The last step done, here or in what was restored."""

        self._port = port
        self._awaited = None if port.settings.rewind else port.restore_target
        """What must be restored before a step is done."""

        self._kept_step = -1
        """The newest step that was restored, or of which a save was begun."""

        self._first_step = 0
        self._left = False

    def restored(self, step: int) -> None:
        self._awaited = None
        self.last_step = self._kept_step = step
        if not self._port.settings.rewind:
            self._first_step = step + 1

    def done(self, step: int) -> None:
        """Raises:
        NotRestoredError: the committed generation holds this step already.
        """
        if self._awaited is not None:
            raise NotRestoredError(
                f"step {self._awaited.step} is committed ({self._awaited.generation_id}), and "
                "restore() was not called: begin the loop with "
                f"`for step in range(checkpoint.restore(), steps)`, or {REWIND}"
            )
        if step < self._first_step:
            raise NotRestoredError(
                f"step {step} was done again, though step {self._first_step - 1} was restored: "
                f"begin the loop at what restore() returned, {self._first_step}, or {REWIND}"
            )
        self.last_step = step

    def misses(self, step: int) -> str:
        """Why the state is not that of the step which the drain saves; empty: it is."""
        if step == self.last_step:
            return ""
        return f"rank {self._port.rank} is at step {self.last_step}, not {step}"

    def saved(self, step: int) -> None:
        """A save of this step was begun, and will be committed or reported as failed."""
        self._kept_step = step

    def leaves(self) -> None:
        """The loop was told to end: nothing more is saved than was ordered."""
        self._left = True

    @property
    def left(self) -> bool:
        """The loop was told to end."""
        return self._left

    def to_save_at_the_end(self) -> int | None:
        """The last step, if the loop ended by itself and it is not saved; None: there is none, or
        the job ends by an error, or final saves are off (which is logged)."""
        unfinished = self._left or self._port.draining or sys.exc_info()[0] is not None
        if unfinished or self.last_step == self._kept_step:
            return None
        if not self._port.settings.final:
            if self._port.rank == 0:
                log.warning(
                    "the last step, %s, is not saved (final = false in [checkpoint]): another "
                    "start goes on after step %s",
                    self.last_step,
                    self._kept_step,
                )
            return None
        return self.last_step
