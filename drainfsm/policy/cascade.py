"""Jobs that evict one another: chains, circles, and how much of the time that costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from drainfsm.core.events import NoticeNoted, NoticeReceived
from drainfsm.core.records import Record
from drainfsm.policy.events import CascadeDetected, Eviction
from drainfsm.policy.rules import CascadeRules


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Evictions that a later one may still continue, each as the end of its longest chain."""

    chains: tuple[tuple[Eviction, ...], ...] = ()


def watch_eviction(
    watched: Watched, eviction: Eviction, rules: CascadeRules
) -> tuple[Watched, CascadeDetected | None]:
    """One more eviction. Feed them in the order of their instants.

    A cascade is reported when it has ``hops`` evictions and again with each further one; a circle
    as soon as it is closed.
    """
    since = eviction.at_unix_ms - rules.window_s * 1_000
    recent = tuple(chain for chain in watched.chains if chain[-1].at_unix_ms >= since)
    before: tuple[Eviction, ...] = ()
    for chain in recent:
        fresh = tuple(one for one in chain if one.at_unix_ms >= since)
        if fresh[-1].victim == eviction.by and len(fresh) >= len(before):
            before = fresh
    chain = (*before, eviction)
    cycle = any(eviction.victim == one.by for one in chain)
    after = Watched(chains=(*recent, chain))
    if not cycle and len(chain) < rules.hops:
        return after, None
    path = " evicts ".join((chain[0].by, *(one.victim for one in chain)))
    return after, CascadeDetected(
        at_unix_ms=eviction.at_unix_ms, reason=path, chain=chain, cycle=cycle, rules=rules
    )


def cascades(evictions: Iterable[Eviction], rules: CascadeRules) -> list[CascadeDetected]:
    """All cascades among these evictions, which may be in any order."""
    watched, found = Watched(), []
    for eviction in sorted(evictions, key=lambda one: one.at_unix_ms):
        watched, cascade = watch_eviction(watched, eviction, rules)
        found += [cascade] if cascade else []
    return found


def evictions_in(records: Iterable[Record]) -> Iterator[Eviction]:
    """From the notices that say which job takes the capacity; repeats of one count once."""
    seen: set[tuple[str, int, str]] = set()
    for record in records:
        for event in record.events:
            if not isinstance(event, NoticeReceived | NoticeNoted) or not event.notice.evicted_by:
                continue
            eviction = (record.job_id, record.epoch, event.notice.evicted_by)
            if eviction not in seen:
                seen.add(eviction)
                yield Eviction(at_unix_ms=record.at_unix_ms, by=eviction[2], victim=record.job_id)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of attempts was spent."""

    starting_ms: int = 0
    """From the claim to the first step that was completed on every rank."""

    training_ms: int = 0
    draining_ms: int = 0
    """From the notice to no process left."""

    def __add__(self, other: Times) -> Times:
        return Times(
            starting_ms=self.starting_ms + other.starting_ms,
            training_ms=self.training_ms + other.training_ms,
            draining_ms=self.draining_ms + other.draining_ms,
        )

    @property
    def thrash_ratio(self) -> float | None:
        """Starting and draining over training; None: nothing was trained."""
        if not self.training_ms:
            return None
        return (self.starting_ms + self.draining_ms) / self.training_ms

    def thrashes(self, rules: CascadeRules) -> bool:
        ratio = self.thrash_ratio
        return ratio > rules.thrash_max if ratio is not None else bool(self.starting_ms)
