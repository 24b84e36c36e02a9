"""What a checkpoint tells the agent about saves and restores, from any thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from drainfsm.core.events import CheckpointRestored, MemoryShortage, RestoreRefused
from drainfsm.core.manifest import Entry
from drainfsm.runtime.wire import rank_messages as m

REASON_CHARS_MAX = 2_000
"""Length of a refusal's reason, which may list many files or names."""


class Reports(ABC):
    """The reporting half of a session. Every method returns at once."""

    rank: int
    node: int
    last_step: int

    @abstractmethod
    def _send(self, message: m.FromRank) -> None: ...

    def declare_size(self, save_bytes: int) -> None:
        self._send(m.SizeDeclared(save_bytes=save_bytes))

    def report_save_began(self, generation_id: str, step: int) -> None:
        self._send(m.SaveBegan(generation_id=generation_id, step=step))

    def report_staged(self, generation_id: str, staged_bytes: int) -> None:
        self._send(m.Staged(generation_id=generation_id, staged_bytes=staged_bytes))

    def report_durable(
        self,
        generation_id: str,
        entries: Sequence[Entry],
        durable_ms: int,
        *,
        saver: str = "",
    ) -> None:
        self._send(
            m.DurableFiles(
                generation_id=generation_id,
                entries=tuple(entries),
                durable_ms=durable_ms,
                saver=saver,
            )
        )

    def report_save_failed(
        self, generation_id: str, reason: str, *, memory: MemoryShortage | None = None
    ) -> None:
        self._send(m.SaveFailed(generation_id=generation_id, reason=reason, memory=memory))

    def report_restore_refused(
        self, *, generation_id: str, step: int, error: str, reason: str
    ) -> None:
        self._send(
            RestoreRefused(
                generation_id=generation_id,
                step=step,
                error=error,
                reason=reason[:REASON_CHARS_MAX],
                rank=self.rank,
                node=self.node,
            )
        )

    def begin_after(self, step: int) -> None:
        self.last_step = step

    def report_restored(self, restored: CheckpointRestored) -> None:
        self.last_step = restored.step
        self._send(restored)
