"""One drain of a large job: what it costs the coordinator, and how that grows with the job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.codec import encode
from drainfsm.core.records import Record
from drainfsm.runtime.coordinator import decision_loop
from drainfsm_kit.simulator.cluster import Cluster
from drainfsm_kit.simulator.plan import GivenNotice, Plan, World
from drainfsm_kit.simulator.simulation import finish
from drainfsm_kit.simulator.timeline import US_PER_MS
from drainfsm_kit.simulator.universe import Universe

RANKS_PER_NODE = 8
SIZES = (8, 64, 512, 2_048, 16_384)
"""Ranks."""

NOTICE_MS = 12_000
LONGEST_MS = 300_000


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one drain that was saved, from the notice to the last exit."""

    rank_count: int
    node_count: int
    message_count: int
    """Between nodes, both ways."""

    message_bytes: int
    rank_message_count: int
    """Between ranks and their agents, on each machine by itself."""

    decide_count: int
    record_count: int
    record_bytes: int
    largest_record_bytes: int
    coordinator_ms: int
    """Processor time of the coordinator's process, its node's agent and the shipper included."""

    saved_ms: int
    """From the notice to the commit record, in virtual time."""

    exited_ms: int
    """To the last rank's end."""

    wall_ms: int
    """To simulate the whole attempt, from its start."""


def plan_for(rank_count: int) -> Plan:
    ranks_per_node = min(rank_count, RANKS_PER_NODE)
    world = World(
        node_count=rank_count // ranks_per_node,
        ranks_per_node=ranks_per_node,
        attempts_max=1,
        step_ms=2_000,
        step_count=1_000,
        save_every=0,
        save_bytes=rank_count * 1_000,
        write_ms=2_000,
        load_ms=500,
        allowances=Allowances(store_bytes_per_s=rank_count * 1_000),
        grace_ms=60_000,
        skews_ms=(0,),
        heartbeat_s=5.0,
        silence_s=60.0,
        attach_s=120.0,
        end_ms=LONGEST_MS,
    )
    notice = GivenNotice(what="platform", attempt=1, after_ms=NOTICE_MS, in_ms=60_000)
    return Plan(seed=rank_count, world=world, events=(notice,))


def measure(rank_count: int) -> Cost:
    """Raises: AssertionError: a rule was broken, or the drain was not saved."""
    began_ns = time.perf_counter_ns()
    plan = plan_for(rank_count)
    universe = Universe(plan)
    universe.timeline.cpu_ns = {}
    cluster = Cluster(universe)
    with _counted() as decided:
        try:
            cluster.start_attempt()
            universe.timeline.run(until_us=NOTICE_MS * US_PER_MS, over=lambda: False)
            before = _so_far(cluster)
            decided.clear()
            until_us = LONGEST_MS * US_PER_MS
            universe.timeline.run(until_us=until_us, over=lambda: cluster.over)
            after = _so_far(cluster)
            result = finish(cluster)
        finally:
            universe.dispose()
    assert result.problems == [], result.problems
    ((_, records),) = result.history
    opened = _first(records, e.NoticeReceived)
    began_ms = records[opened].at_unix_ms
    sizes = [len(encode(record)) for record in records[opened:]]
    return Cost(
        rank_count=rank_count,
        node_count=plan.world.node_count,
        **{name: value - before[name] for name, value in after.items()},
        decide_count=sum(decided),
        record_count=len(sizes),
        record_bytes=sum(sizes),
        largest_record_bytes=max(sizes),
        saved_ms=records[_first(records, e.ManifestPublished)].at_unix_ms - began_ms,
        exited_ms=records[_first(records, e.Exited)].at_unix_ms - began_ms,
        wall_ms=(time.perf_counter_ns() - began_ns) // 1_000_000,
    )


def _first(records: list[Record], kind: type[e.Fact]) -> int:
    """Number of the first record with an event of that kind."""
    return next(
        n for n, record in enumerate(records) if any(isinstance(one, kind) for one in record.events)
    )


def _so_far(cluster: Cluster) -> dict[str, int]:
    universe = cluster.universe
    first = cluster.attempts[0].agents[0].process
    cpu_ns = (universe.timeline.cpu_ns or {}).get(first, 0)
    jobs = [agent.job for agent in cluster.attempts[0].agents if agent.job is not None]
    return {
        "message_count": universe.network.message_count,
        "message_bytes": universe.network.byte_count,
        "rank_message_count": sum(job.door.message_count for job in jobs),
        "coordinator_ms": cpu_ns // 1_000_000,
    }


@contextlib.contextmanager
def _counted() -> Iterator[list[int]]:
    """Counts the calls of ``decide`` that the ledger makes."""
    counts: list[int] = []
    names = vars(decision_loop)
    decide = names["decide"]

    def counting(*given: Any, **named: Any) -> Any:
        counts.append(1)
        return decide(*given, **named)

    names["decide"] = counting
    try:
        yield counts
    finally:
        names["decide"] = decide
