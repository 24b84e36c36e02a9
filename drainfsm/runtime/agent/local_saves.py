"""The saves of one node's ranks, periodic ones and the drain's, gathered into one report each."""

from __future__ import annotations

from collections.abc import Callable

from drainfsm.core.events import MemoryShortage
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m

SaveMessage = m.SaveBegan | m.Staged | m.DurableFiles | m.SaveFailed


class _LocalSave:
    def __init__(self) -> None:
        self.began = False
        self.staged_bytes: dict[int, int] = {}
        self.staged_reported = False
        self.durable: dict[int, m.DurableFiles] = {}


class LocalSaves:
    def __init__(self, report: Callable[[n.FromNode], None]) -> None:
        self._report = report
        self._saves: dict[str, _LocalSave] = {}
        self._over: set[str] = set()
        """Failed, given up or forgotten: nothing is reported of them any more."""

        self._durable: set[str] = set()
        """Reported durable; a rank may still find that they failed."""

    def forget(self) -> None:
        """The ranks were restarted: the saves that they had begun fail."""
        for generation_id in list(self._saves):
            self._fail(generation_id, "the ranks were restarted")

    def drop(self, generation_id: str) -> None:
        self._saves.pop(generation_id, None)
        self._over.add(generation_id)

    def on_message(self, rank: int, message: SaveMessage, ranks: tuple[int, ...] | None) -> None:
        """``ranks``: all of the node; None while they are not complete."""
        generation_id = message.generation_id
        if generation_id in self._over:
            return
        if generation_id in self._durable and not isinstance(message, m.SaveFailed):
            return
        save = self._saves.setdefault(generation_id, _LocalSave())
        match message:
            case m.SaveBegan(step=step):
                if not save.began:
                    save.began = True
                    self._report(n.NodeSaveBegan(generation_id=generation_id, step=step))
            case m.Staged(staged_bytes=staged_bytes):
                save.staged_bytes[rank] = staged_bytes
                self._check_staged(generation_id, save, ranks)
            case m.DurableFiles():
                save.durable[rank] = message
                total = sum(entry.size_bytes for entry in message.entries)
                save.staged_bytes.setdefault(rank, total)
                self._check_staged(generation_id, save, ranks)
                self._check_durable(generation_id, save, ranks)
            case m.SaveFailed(reason=reason, memory=memory):
                self._fail(generation_id, f"rank {rank}: {reason}", memory)

    def _fail(self, generation_id: str, reason: str, memory: MemoryShortage | None = None) -> None:
        self.drop(generation_id)
        failed = n.NodeSaveFailed(generation_id=generation_id, reason=reason, memory=memory)
        self._report(failed)

    def _check_staged(
        self, generation_id: str, save: _LocalSave, ranks: tuple[int, ...] | None
    ) -> None:
        if ranks is None or save.staged_reported or set(save.staged_bytes) != set(ranks):
            return
        save.staged_reported = True
        self._report(
            n.NodeStaged(
                generation_id=generation_id,
                staged_bytes=sum(save.staged_bytes.values()),
                rank_count=len(ranks),
            )
        )

    def _check_durable(
        self, generation_id: str, save: _LocalSave, ranks: tuple[int, ...] | None
    ) -> None:
        if ranks is None or set(save.durable) != set(ranks):
            return
        self._saves.pop(generation_id, None)
        self._durable.add(generation_id)
        files = save.durable.values()
        self._report(
            n.NodeDurable(
                generation_id=generation_id,
                entries=tuple(entry for one in files for entry in one.entries),
                file_counts={rank: len(one.entries) for rank, one in save.durable.items()},
                durable_ms=max(one.durable_ms for one in files),
                savers=tuple(sorted({one.saver for one in files})),
            )
        )
