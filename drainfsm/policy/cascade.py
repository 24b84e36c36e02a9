"""Jobs that evict one another: chains, circles, and how much of the time that costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from drainfsm.core.events import NoticeNoted, NoticeReceived
from drainfsm.core.records import Record
from drainfsm.policy.events import CascadeDetected, Eviction
from drainfsm.policy.rules import CascadeRules

CHAIN_MAX = 64
"""Evictions of one chain that are kept, the newest: where jobs thrash it grows for ever."""

Chain = tuple[Eviction, ...]


def cascades(evictions: Iterable[Eviction], rules: CascadeRules) -> list[CascadeDetected]:
    """All cascades among these evictions, which may be in any order.

    One is reported when it has ``hops`` evictions and again with each further one; a circle as soon
    as it is closed.
    """
    chains: dict[str, list[Chain]] = {}
    found = []
    for eviction in sorted(evictions, key=lambda one: one.at_unix_ms):
        chain = (*_longest(chains.get(eviction.by, []), eviction, rules), eviction)[-CHAIN_MAX:]
        cycle = any(eviction.victim == one.by for one in chain)
        others = chains.get(eviction.victim, [])
        chains[eviction.victim] = [*(one for one in others if not _outdates(chain, one)), chain]
        if cycle or len(chain) >= rules.hops:
            found.append(_detected(chain, cycle=cycle, rules=rules))
    return found


def _longest(chains: Iterable[Chain], eviction: Eviction, rules: CascadeRules) -> Chain:
    """What is within the window of those that the evicting job was the last victim of."""
    since = eviction.at_unix_ms - rules.window_s * 1_000
    before: Chain = ()
    for chain in chains:
        fresh = tuple(one for one in chain if one.at_unix_ms >= since)
        if fresh and len(fresh) >= len(before):
            before = fresh
    return before


def _outdates(chain: Chain, other: Chain) -> bool:
    """Whatever the window, no less of it is within: nobody asks for the other one any more."""
    pairs = zip(reversed(chain), reversed(other), strict=False)
    return len(chain) >= len(other) and all(one.at_unix_ms >= old.at_unix_ms for one, old in pairs)


def _detected(chain: Chain, *, cycle: bool, rules: CascadeRules) -> CascadeDetected:
    path = " evicts ".join((chain[0].by, *(one.victim for one in chain)))
    return CascadeDetected(
        at_unix_ms=chain[-1].at_unix_ms, reason=path, chain=chain, cycle=cycle, rules=rules
    )


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
