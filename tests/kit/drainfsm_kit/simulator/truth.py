"""What really became of the attempts of a simulation, by true time, whatever their logs say."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from drainfsm_kit.simulator.attempt import SimulatedAttempt
from drainfsm_kit.simulator.cluster import Cluster
from drainfsm_kit.simulator.rank import Rank
from drainfsm_kit.simulator.timeline import US_PER_MS


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """Of one attempt that claimed its epoch and lived to write it down."""

    epoch: int
    began_ms: int
    noticed: bool
    """It was given a notice, which may have been taken back."""

    ended_ms: int | None
    """No rank was left; None: some rank never ended, or there was none."""

    committed_ms: int | None
    """The job's last commit by then."""

    restore_ms: int | None
    """Of the slowest rank, in the last world in which every rank restored."""

    stepped: bool
    """Every rank of one world completed a step."""


def truths(cluster: Cluster) -> dict[int, Truth]:
    """By epoch."""
    found = {}
    for attempt in cluster.attempts:
        if attempt.state is not None:
            truth = _truth(attempt, epoch=attempt.state.attempt.epoch)
            found[truth.epoch] = truth
    return found


def _truth(attempt: SimulatedAttempt, *, epoch: int) -> Truth:
    ranks = [rank for agent in attempt.agents if agent.job for rank in agent.job.ranks]
    ends_us = [rank.ended_us for rank in ranks if rank.ended_us is not None]
    over = bool(ranks) and len(ends_us) == len(ranks)
    ended_ms = max(ends_us) // US_PER_MS if over else None
    commits_ms = attempt.universe.store.commits_ms
    restored = [
        max(rank.restore_ms or 0 for rank in world)
        for world in _worlds(attempt, ranks)
        if all(rank.restore_ms is not None for rank in world)
    ]
    return Truth(
        epoch=epoch,
        began_ms=attempt.began_ms,
        noticed=attempt.noticed,
        ended_ms=ended_ms,
        committed_ms=max((ms for ms in commits_ms if ended_ms and ms <= ended_ms), default=None),
        restore_ms=restored[-1] if restored else None,
        stepped=any(
            all(rank.first_step is not None and rank.step >= rank.first_step for rank in world)
            for world in _worlds(attempt, ranks)
        ),
    )


def _worlds(attempt: SimulatedAttempt, ranks: list[Rank]) -> Iterator[list[Rank]]:
    """The ranks that train together, once they are all there."""
    worlds: dict[str, list[Rank]] = {}
    for rank in ranks:
        worlds.setdefault(rank.around.incarnation, []).append(rank)
    size = attempt.universe.plan.world.world_size
    return (world for world in worlds.values() if len(world) == size)
