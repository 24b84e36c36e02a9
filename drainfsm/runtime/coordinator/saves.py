"""The saves under way, of all nodes: the drain's one, and periodic ones. No I/O."""

from __future__ import annotations

import msgspec

from drainfsm.core.manifest import Entry
from drainfsm.runtime.wire import node_messages as n

OVER_MAX = 1_000
"""Ids of saves that are over, remembered so that a late report reopens none."""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Durable on every rank: ready to be verified and committed."""

    generation_id: str
    step: int
    entries: tuple[Entry, ...]
    file_counts: dict[int, int]
    durable_ms: int
    savers: tuple[str, ...] = ("",)
    """The different savers that the ranks named; more than one is refused."""

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


class StagedEverywhere(msgspec.Struct, frozen=True, kw_only=True):
    generation_id: str
    staged_bytes: int
    rank_count: int


class _Save:
    def __init__(self) -> None:
        self.step = -1
        self.staged: dict[int, n.NodeStaged] = {}
        self.durable: dict[int, n.NodeDurable] = {}


class Saves:
    """Node reports in, whole saves out."""

    def __init__(self, *, node_count: int) -> None:
        self._node_count = node_count
        self._saves: dict[str, _Save] = {}
        self._over: dict[str, None] = {}

    def begin(self, generation_id: str, *, step: int) -> None:
        if generation_id not in self._over:
            self._saves.setdefault(generation_id, _Save()).step = step

    def staged(self, node: int, message: n.NodeStaged) -> StagedEverywhere | None:
        save = self._saves.get(message.generation_id)
        if save is None:
            return None
        save.staged[node] = message
        if len(save.staged) < self._node_count:
            return None
        return StagedEverywhere(
            generation_id=message.generation_id,
            staged_bytes=sum(one.staged_bytes for one in save.staged.values()),
            rank_count=sum(one.rank_count for one in save.staged.values()),
        )

    def durable(self, node: int, message: n.NodeDurable) -> Written | None:
        save = self._saves.get(message.generation_id)
        if save is None:
            return None
        save.durable[node] = message
        if len(save.durable) < self._node_count:
            return None
        self.drop(message.generation_id)
        parts = save.durable.values()
        return Written(
            generation_id=message.generation_id,
            step=save.step,
            entries=tuple(entry for one in parts for entry in one.entries),
            file_counts={rank: c for one in parts for rank, c in one.file_counts.items()},
            durable_ms=max(one.durable_ms for one in parts),
            savers=tuple(sorted({saver for one in parts for saver in one.savers})),
        )

    def drop_all(self, *, but: str | None) -> list[tuple[str, int]]:
        """Ids and steps of the saves that were under way, and are over now."""
        dropped = [(one, save.step) for one, save in self._saves.items() if one != but]
        for generation_id, _ in dropped:
            self.drop(generation_id)
        return dropped

    def drop(self, generation_id: str) -> int | None:
        """The save is over. Its step; None: it was over before, or never began."""
        save = self._saves.pop(generation_id, None)
        self._over[generation_id] = None
        while len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]
        return None if save is None else save.step
