"""Whether the attempts of a job make progress. A job whose save never fits into a notice's window
begins at the same step for ever. Then it is held until somebody looks at it."""

from __future__ import annotations

import contextlib

from drainfsm.core.requeue import RequeueRecord
from drainfsm.errors import DrainfsmError
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.threads import in_thread


class AttemptProgress:
    """Knows the attempts before this one by their requeue records."""

    def __init__(
        self, publisher: Publisher, before: RequeueRecord | None, *, attempts_max: int
    ) -> None:
        """``before``: what this attempt was to restore. ``attempts_max``: see ``RunConfig``."""
        self._publisher = publisher
        self._before = before
        self._attempts_max = attempts_max
        self._count = 0
        """Attempts in a row before this one that have left where the one before it did."""

    async def look(self) -> None:
        """A few small reads, at the start, long before the answer matters."""
        if self._before is None or not self._attempts_max:
            return
        with contextlib.suppress(DrainfsmError, OSError):  # then this attempt does not hold the job
            self._count = await in_thread(
                "progress",
                lambda: self._publisher.count_without_progress(most=self._attempts_max),
            )

    def held_because(self, record: RequeueRecord | None) -> str:
        """Why the job is not to be started again by itself; empty: it may be.

        ``record``: what this attempt leaves behind.
        """
        before, count = self._before, self._count + 1
        if record is None or before is None or not 0 < self._attempts_max <= count:
            return ""
        if record.generation_id != before.generation_id:
            return ""
        where = "with nothing committed" if record.step is None else f"on step {record.step}"
        return (
            f"{count} attempts in a row left {where}: their saves do not fit into the window of a "
            "notice, or fail; see `drainfsm report`, --grace and every_steps. Started by hand it "
            "goes on, and is held again where it gets no further (--attempts)"
        )
