"""Which generations may go. Pure: what the store held goes in, a verdict for each comes out.

Why a removal is safe, whenever it is carried out, however late:

* An uncommitted generation goes only if its epoch is older than a claim. Once epoch n + 1 has a
  slot nothing of epoch n can ever be committed (``store/commits.py``), so nobody will need it.
* A committed one goes only if no restart can ask for it. A restart restores from the requeue record
of the attempt before it, or derives one from the newest commit. A record names what its attempt
committed last, as far as that attempt knows, or what it restored. So everything that records name
or may still name is kept; what is not among it now never comes back into it, as records move only
forwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from drainfsm.core.manifest import Commit
from drainfsm.core.requeue import RequeueRecord

UNSETTLED_COMMITS = 3
"""Newest commits that an attempt without a requeue record may still name in it. It names the newest
one that it knows of. To name an older one it must have lost the answers to this many publishes in a
row, and each is retried until it is settled."""

_EPOCH = re.compile(r"e(\d{6,})-s\d+-[a-z0-9]+")


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep of the committed generations; nothing stated: all."""

    keep_last: int | None = None
    keep_every: int | None = None
    """Every n-th commit, counted from the first in the commit log, for ever."""

    @property
    def prunes(self) -> bool:
        return self.keep_last is not None or self.keep_every is not None


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What the store held, in the order in which it must be read: see ``store/gc.py``."""

    epoch: int
    """Of the newest claim."""

    commits: tuple[Commit, ...]
    """Oldest first. Some may be newer than the claim."""

    records: Mapping[int, RequeueRecord]
    """By epoch, from the newest claim downwards to the first that is there."""

    stored_bytes: Mapping[str, int]
    """By generation, its tombstone not counted."""

    pruned: frozenset[str]
    """Generations with a tombstone."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of the store."""

    generation_id: str
    size_bytes: int
    removes: bool
    reason: str
    commit: Commit | None = None


def plan(holding: Holding, retention: Retention) -> tuple[Verdict, ...]:
    """A verdict for every generation that has files, oldest name first."""
    commits = {commit.generation_id: commit for commit in holding.commits}
    kept = protected(holding, depth=retention.keep_last or 1)
    for generation_id, reason in _retained(holding, retention).items():
        if generation_id not in holding.pruned:
            kept.setdefault(generation_id, reason)
    return tuple(
        _verdict(holding, generation_id, commits.get(generation_id), kept.get(generation_id))
        for generation_id in sorted(holding.stored_bytes)
    )


def protected(holding: Holding, *, depth: int) -> dict[str, str]:
    """Committed generations that a restart can ask for, and why.

    ``depth``: how many of those at and before the recorded one. An attempt that finds it damaged
    may fall back to the one before, and restore, and then name that one.
    """
    commits = holding.commits
    kept = {c.generation_id: "a newer attempt's" for c in commits if c.epoch > holding.epoch}
    if commits:
        kept[commits[-1].generation_id] = "the newest commit"
    for epoch in range(holding.epoch, 0, -1):
        record = holding.records.get(epoch)
        if record is not None:
            for generation_id in _up_to(holding, record.generation_id)[-depth:]:
                reason = f"the requeue record of epoch {epoch} names it, or may fall back to it"
                kept.setdefault(generation_id, reason)
            break
        settled = [commit for commit in commits if commit.epoch <= epoch]
        for commit in settled[-UNSETTLED_COMMITS:]:
            reason = f"attempt {epoch} may still name it: it left no requeue record yet"
            kept.setdefault(commit.generation_id, reason)
    return kept


def _up_to(holding: Holding, named: str | None) -> list[str]:
    """Committed generations that are whole, from the oldest to the named one: it may be newer
    than the commits, which were read before the record."""
    if named is None:
        return []
    found: list[str] = []
    for commit in holding.commits:
        if commit.generation_id == named:
            break
        if commit.generation_id not in holding.pruned:
            found.append(commit.generation_id)
    return [*found, named]


def _retained(holding: Holding, retention: Retention) -> dict[str, str]:
    commits = holding.commits
    if not retention.prunes:
        return {commit.generation_id: "committed" for commit in commits}
    kept = {}
    last = retention.keep_last or 1
    for commit in commits[-last:]:
        kept[commit.generation_id] = f"among the last {last}"
    every = retention.keep_every
    for number, commit in enumerate(commits, start=1):
        if every is not None and number % every == 0:
            kept.setdefault(commit.generation_id, f"commit {number}: every {every}-th")
    return kept


def _verdict(
    holding: Holding, generation_id: str, commit: Commit | None, kept: str | None
) -> Verdict:
    removes, reason = True, "committed, and not to be kept"
    if kept is not None:
        removes, reason = False, kept
    elif generation_id in holding.pruned:
        reason = "pruned before, and not to the end"
    elif commit is None:
        removes, reason = _uncommitted(generation_id, newest_epoch=holding.epoch)
    return Verdict(
        generation_id=generation_id,
        size_bytes=holding.stored_bytes[generation_id],
        removes=removes,
        reason=reason,
        commit=commit,
    )


def _uncommitted(generation_id: str, *, newest_epoch: int) -> tuple[bool, str]:
    match = _EPOCH.fullmatch(generation_id)
    if match is None:
        return False, "not a name that drainfsm gives: not touched"
    epoch = int(match[1])
    if epoch >= newest_epoch:
        return False, f"attempt {epoch} may still commit it: no newer one has claimed the job"
    return True, f"never committed, and attempt {epoch} is fenced"
