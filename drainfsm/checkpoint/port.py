"""What the checkpoint asks of the session, and reports to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from drainfsm.core.events import CheckpointRestored, MemoryShortage
from drainfsm.core.manifest import Entry
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, SaveOrder


class RankPort(Protocol):
    """One rank's session. Every ``report_…`` may be called from any thread and returns at once."""

    rank: int
    world_size: int
    store_url: str
    """Empty: there is no agent to commit what is saved, so nothing is."""

    job_id: str
    epoch: int
    settings: CheckpointSettings
    restore_target: RestoreTarget | None
    restart: int
    """How often the ranks were started again inside the epoch."""

    def step_done(self, step: int) -> bool:
        """Blocks while the rank is held, and calls the handlers below. True: leave the loop."""

    def between_steps(self) -> AbstractContextManager[None]:
        """What is done inside does not count as the time of a step."""

    def on_save(self, handler: Callable[[SaveOrder], None]) -> None:
        """Called on the main thread, held at the stop step; does the whole save and reports it."""

    def on_quiesced(self, handler: Callable[[], None]) -> None:
        """Called on the main thread at the stop step, before it is reported."""

    def on_close(self, handler: Callable[[], None]) -> None:
        """Called on the main thread when the session is closed, while it can still report."""

    @property
    def draining(self) -> bool:
        """A drain is on."""

    def declare_size(self, save_bytes: int) -> None:
        """How much this rank will write in a save; the sum over ranks is the checkpoint's size."""

    def report_save_began(self, generation_id: str, step: int) -> None: ...

    def report_staged(self, generation_id: str, staged_bytes: int) -> None:
        """The save no longer needs device memory, nor anything that training changes."""

    def report_durable(
        self,
        generation_id: str,
        entries: Sequence[Entry],
        durable_ms: int,
        *,
        saver: str = "",
    ) -> None:
        """Every file of this rank is durable, and its directory entry. Once a rank and save.
        ``saver``: who wrote them, if the job did so itself."""

    def report_save_failed(
        self, generation_id: str, reason: str, *, memory: MemoryShortage | None = None
    ) -> None:
        """The save failed. Several ranks may report it, even after ``durable``."""

    def begin_after(self, step: int) -> None:
        """The rank is about to restore that step, and not the one of ``restore_target``."""

    def report_restored(self, restored: CheckpointRestored) -> None: ...

    def report_restore_refused(
        self, *, generation_id: str, step: int, error: str, reason: str
    ) -> None:
        """The rank ends with this error. Its reason may be cut short."""

    def save_aborted(self, generation_id: str) -> bool:
        """The coordinator gave this save up."""
