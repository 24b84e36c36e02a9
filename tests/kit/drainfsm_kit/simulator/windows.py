"""Times during which something misbehaves."""

from __future__ import annotations

import msgspec

from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline


class Window(msgspec.Struct, frozen=True, kw_only=True):
    until_us: int
    amount: int = 0
    machine: str = ""
    """Concerns this machine alone; empty: everybody."""


class Windows:
    """By kind of misbehaviour, those that are open."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._open: dict[str, list[Window]] = {}

    def add(self, kind: str, *, for_ms: int, amount: int = 0, machine: str = "") -> None:
        until_us = self._timeline.now_us + for_ms * US_PER_MS
        window = Window(until_us=until_us, amount=amount, machine=machine)
        self._open.setdefault(kind, []).append(window)

    def active(self, kind: str, machine: str = "") -> Window | None:
        """The one that lasts longest; None: all is well."""
        windows = self._open.get(kind)
        if not windows:
            return None
        now_us = self._timeline.now_us
        found = [w for w in windows if w.until_us > now_us and w.machine in ("", machine)]
        return max(found, key=lambda window: window.until_us, default=None)

    def clear(self) -> None:
        self._open.clear()
