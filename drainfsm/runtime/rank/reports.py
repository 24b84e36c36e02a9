"""What a checkpoint tells the agent about saves and restores, from any thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from drainfsm.core.events import MemoryShortage
from drainfsm.core.manifest import Entry
from drainfsm.core.requeue import RefusedGeneration
from drainfsm.core.words import Verification
from drainfsm.runtime.wire import rank_messages as m

REASON_CHARS_MAX = 2_000
"""Of a refusal: its reason may list many files or names."""


class Reports(ABC):
    """The reporting half of a session. Every method returns at once."""

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
            m.RankRestoreRefused(
                generation_id=generation_id,
                step=step,
                error=error,
                reason=reason[:REASON_CHARS_MAX],
            )
        )

    def begin_after(self, step: int) -> None:
        self.last_step = step

    def report_restored(
        self,
        *,
        generation_id: str,
        manifest_digest: str,
        step: int,
        restore_ms: int,
        verification: Verification,
        refused: Sequence[RefusedGeneration] = (),
        saved_world_size: int = 0,
        saved_layout: dict[str, int] | None = None,
        not_restored: Sequence[str] = (),
    ) -> None:
        self.last_step = step
        self._send(
            m.Restored(
                generation_id=generation_id,
                manifest_digest=manifest_digest,
                step=step,
                restore_ms=restore_ms,
                verification=verification,
                refused=tuple(refused),
                saved_world_size=saved_world_size,
                saved_layout=saved_layout or {},
                not_restored=tuple(not_restored),
            )
        )
