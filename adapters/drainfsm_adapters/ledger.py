"""What one node's platform has stated so far, and which of it is news.

A platform repeats itself at every poll, restates deadlines and takes events back. The ledger turns
that into notices with the identity that the core needs:

- the same event again, or a deadline that slides at every poll, is not news;
- an earlier deadline is the same notice again, with the earlier deadline;
- a HARD event stays, whatever the platform says later;
- a SOFT event that goes is withdrawn; one that moves later (or comes back) is withdrawn and
  announced under a new ``native_id``: no deadline is ever extended inside one drain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from drainfsm.adapter import NoticeSink
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm_adapters.server_clock import ServerClock

MOVED_MS = 1_000
"""Platforms state whole seconds: a smaller difference is not a move."""

ANOTHER_EVENT_MS = 600_000
"""A HARD event that was gone and is back with a deadline this much later is another one."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One event, as the platform states it now."""

    key: str
    """Tells it from the platform's other events: an event id, or the name of the key."""

    tag: str = ""
    """Hash of the payload when first seen, where the platform has no id."""

    cause: Cause
    notice_class: NoticeClass
    stated_unix_ms: int | None = None
    """Deadline by the platform's clock, as stated; None: it states none."""

    derived_unix_ms: int | None = None
    """Deadline by our clock, for platforms that state none: seen at + lead time."""

    assumed: bool = False
    """``derived_unix_ms`` follows from configuration alone."""

    skew_ms: int = 0
    """How much earlier than ``derived_unix_ms`` it may be."""

    advisory: bool = False
    """The job does not leave for it."""

    at_once: bool = False
    """It is happening: the deadline is now."""

    detail: str = ""
    nodes: tuple[str, ...] = ()
    """Nodes that go away; empty: this machine, or the whole job."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one signal. PRESENT: ``events``. UNKNOWN: not ``complete``. Else NONE."""

    events: tuple[Observed, ...] = ()
    ended: dict[str, str] = {}
    """Keys that the platform says are over, and why; others that are missing are just not there."""

    complete: bool = True
    """False: some or all of it could not be read, so nothing follows from what is not there."""

    detail: str = ""
    """Why it is not complete."""


NONE = Reading()


def unknown(detail: str, *events: Observed) -> Reading:
    return Reading(events=events, complete=False, detail=detail)


class _Held(msgspec.Struct, kw_only=True):
    native_id: str
    observed: Observed
    standing: bool
    """It was there when the signal was first read."""

    deadline_unix_ms: int | None = None
    """Earliest that was sent: one identity never states a later one."""

    absent_count: int = 0
    later_unix_ms: int | None = None
    """A later deadline seen once: it counts when it is stated twice, a sliding one never is."""

    @property
    def soft(self) -> bool:
        return self.observed.notice_class == NoticeClass.SOFT


class Ledger:
    """One per ``watch``. ``settle`` is the only way in, the sink the only way out."""

    def __init__(
        self,
        *,
        source: str,
        sink: NoticeSink,
        clock: ServerClock,
        now_unix_ms: Callable[[], int],
        scope: str = "",
    ) -> None:
        self._scope = scope
        self._source = source
        self._sink = sink
        self._clock = clock
        self._now_unix_ms = now_unix_ms
        self._held: dict[tuple[str, str], _Held] = {}
        self._revisions: dict[str, int] = {}
        self._read: set[str] = set()
        """Signals that have been read in full."""

    @property
    def named(self) -> bool:
        return bool(self._scope)

    def name(self, scope: str) -> None:
        """Whom the notices are about. It is part of their identity: the first name stays."""
        self._scope = self._scope or scope

    def settle(self, signal: str, reading: Reading, *, confirm_count: int = 1) -> bool:
        """Take in one reading. A SOFT event is gone once ``confirm_count`` readings lack it.

        True: a change awaits its confirmation by the next reading.
        """
        for observed in _once_each(reading.events):
            self._present((signal, observed.key), observed)
        present = {observed.key for observed in reading.events}
        for key, reason in reading.ended.items():
            if key not in present:  # stated as over and as present in one reading: it is present
                self._ended((signal, key), reason)
        if reading.complete:
            self._read.add(signal)
            self._miss(signal, reading, confirm_count=confirm_count)
        held = [self._held[place] for place in self._held if place[0] == signal]
        return any(h.later_unix_ms is not None or h.absent_count == 1 for h in held if h.soft)

    def _miss(self, signal: str, reading: Reading, *, confirm_count: int) -> None:
        seen = {observed.key for observed in reading.events}
        for place in [p for p in self._held if p[0] == signal and p[1] not in seen]:
            held = self._held[place]
            held.absent_count += 1
            held.later_unix_ms = None
            if held.soft and held.absent_count >= confirm_count:
                self._withdraw(place, "no longer stated by the platform")

    def _present(self, place: tuple[str, str], observed: Observed) -> None:
        held = self._held.get(place)
        if held is None:
            self._announce(place, observed)
            return
        was_absent, held.absent_count = held.absent_count > 0, 0
        moved_ms = _moved_ms(held.observed, observed)
        hard = not held.soft
        hardens = held.soft and observed.notice_class == NoticeClass.HARD
        if hardens or moved_ms <= -MOVED_MS:
            kept = NoticeClass.HARD if hard or hardens else NoticeClass.SOFT
            self._restate(held, msgspec.structs.replace(observed, notice_class=kept))
        elif moved_ms < MOVED_MS:
            held.later_unix_ms = None
        elif hard:
            if was_absent and moved_ms > ANOTHER_EVENT_MS:
                self._announce(place, observed)
        elif held.later_unix_ms != observed.stated_unix_ms:
            held.later_unix_ms = observed.stated_unix_ms
        else:
            self._withdraw(place, f"moved later by {moved_ms // 1_000} s")
            self._announce(place, observed)

    def _ended(self, place: tuple[str, str], reason: str) -> None:
        held = self._held.get(place)
        if held is not None and held.soft:
            self._withdraw(place, reason)

    def _announce(self, place: tuple[str, str], observed: Observed) -> None:
        base = "/".join(filter(None, (self._scope, observed.key, observed.tag)))
        revision = self._revisions[base] = self._revisions.get(base, 0) + 1
        native_id = base if revision == 1 else f"{base}~{revision}"
        standing = place[0] not in self._read
        held = self._held[place] = _Held(native_id=native_id, observed=observed, standing=standing)
        self._send(held)

    def _restate(self, held: _Held, observed: Observed) -> None:
        held.observed = observed
        held.later_unix_ms = None
        self._send(held)

    def _withdraw(self, place: tuple[str, str], reason: str) -> None:
        held = self._held.pop(place)
        self._sink.withdraw(source=self._source, native_id=held.native_id, reason=reason)

    def _send(self, held: _Held) -> None:
        observed, now = held.observed, self._now_unix_ms()
        stated = observed.stated_unix_ms
        deadline = observed.derived_unix_ms
        if stated is not None:
            deadline = self._clock.ours_unix_ms(stated)
        if observed.at_once:
            deadline = now if deadline is None else min(now, deadline)
        elif observed.notice_class == NoticeClass.SOFT and (deadline or now) <= now:
            deadline = None  # its window is open, and it may begin at any moment: the grace counts
        skew_ms = observed.skew_ms
        if stated is not None:
            skew_ms += self._clock.uncertainty_ms
        if deadline is not None and held.deadline_unix_ms is not None:
            deadline = min(deadline, held.deadline_unix_ms)
        held.deadline_unix_ms = deadline if deadline is not None else held.deadline_unix_ms
        self._sink.notice(
            Notice(
                source=self._source,
                native_id=held.native_id,
                cause=observed.cause,
                notice_class=observed.notice_class,
                deadline_unix_ms=deadline,
                received_unix_ms=now,
                clock_skew_ms=0 if deadline is None else skew_ms,
                nodes=observed.nodes,
                detail=observed.detail,
                standing=held.standing,
                assumed=observed.assumed or deadline is None or UNSET,
                advisory=observed.advisory or UNSET,
            )
        )


def _once_each(events: tuple[Observed, ...]) -> list[Observed]:
    """Of an event that is stated twice in one reading: HARD before SOFT, and the earliest."""
    found: dict[str, Observed] = {}
    for observed in sorted(events, key=_urgency, reverse=True):
        found[observed.key] = observed
    return [found[key] for key in dict.fromkeys(observed.key for observed in events)]


def _urgency(observed: Observed) -> tuple[bool, bool, int]:
    soft = observed.notice_class is NoticeClass.SOFT
    stated = observed.stated_unix_ms
    return soft, not observed.at_once, stated if stated is not None else sys.maxsize


def _moved_ms(before: Observed, after: Observed) -> int:
    """How much later the stated deadline is than before; negative: earlier."""
    if before.at_once:
        return 0  # nothing is earlier, and what has begun is not put off
    if after.at_once:
        return -MOVED_MS
    if before.stated_unix_ms is None or after.stated_unix_ms is None:
        return 0
    return after.stated_unix_ms - before.stated_unix_ms
