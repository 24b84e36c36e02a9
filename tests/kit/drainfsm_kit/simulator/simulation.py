"""One simulation: a plan, run to its end, and what was found."""

from __future__ import annotations

from msgspec.structs import replace

from drainfsm.core.records import Record
from drainfsm_kit.simulator.checks import problems
from drainfsm_kit.simulator.cluster import Cluster
from drainfsm_kit.simulator.disk import Disk
from drainfsm_kit.simulator.host import new_shipper
from drainfsm_kit.simulator.log_checks import outcomes
from drainfsm_kit.simulator.plan import Plan
from drainfsm_kit.simulator.seeds import plan_of
from drainfsm_kit.simulator.tally import Tally
from drainfsm_kit.simulator.timeline import US_PER_MS
from drainfsm_kit.simulator.truth import truths
from drainfsm_kit.simulator.universe import Universe

ATTEMPT_MS = 120_000
"""Longest that an attempt lasts after the notice that ends it, stops and hangs included."""

SETTLE_MS = 45_000
"""For what was asked of the store and the disk, and is done when nobody waits for it any more."""

SHIP_MS = 60_000


class Result:
    """What came of a plan."""

    def __init__(self, cluster: Cluster, found: list[str], *, took_ms: int) -> None:
        self.plan = cluster.universe.plan
        self.problems = found
        self.tally: Tally = cluster.universe.tally
        self.took_ms = took_ms
        self.truth = truths(cluster)
        self.history: list[tuple[int, list[Record]]] = [
            (epoch, list(disk.records(epoch)))
            for disk in cluster.universe.disks
            for epoch in disk.epochs
        ]


def simulate_seed(seed: int) -> Result:
    return simulate(plan_of(seed))


def simulate(plan: Plan) -> Result:
    universe = Universe(plan)
    cluster = Cluster(universe)
    try:
        cluster.start_attempt()
        longest_ms = plan.world.attempts_max * (plan.world.end_ms + ATTEMPT_MS)
        universe.timeline.run(until_us=longest_ms * US_PER_MS, over=lambda: cluster.over)
        return finish(cluster)
    finally:
        universe.dispose()


def finish(cluster: Cluster) -> Result:
    """Everything has ended: is it as it must be?"""
    timeline = cluster.universe.timeline
    took_ms = timeline.now_ms
    timeline.run(until_us=timeline.now_us + SETTLE_MS * US_PER_MS, over=lambda: False)
    _ship_the_rest(cluster)
    result = Result(cluster, problems(cluster), took_ms=took_ms)
    _count(cluster, result)
    return result


def _ship_the_rest(cluster: Cluster) -> None:
    """As a later attempt would: the broker is back, and what the stream lacks is shipped."""
    universe = cluster.universe
    universe.broker.faults.clear()
    for disk in universe.disks:
        if disk.epochs:
            _ship(cluster, disk)


def _ship(cluster: Cluster, disk: Disk) -> None:
    universe = cluster.universe
    machine = universe.new_machine("later", disk)
    process = universe.new_process("later", machine)
    config = replace(cluster.attempts[0].config(0), state_dir=disk.state_dir)

    async def ship() -> int:
        shipper = new_shipper(universe, config, on_error=lambda text: None)
        await shipper.start()
        shipped = await shipper.flush(timeout_ms=SHIP_MS)
        await shipper.close(timeout_ms=1_000)
        return 0 if shipped else 1

    process.start(ship())
    until_us = universe.timeline.now_us + 2 * SHIP_MS * US_PER_MS
    universe.timeline.run(until_us=until_us, over=lambda: process.dead)


def _count(cluster: Cluster, result: Result) -> None:
    tally, universe = cluster.universe.tally, cluster.universe
    tally.counts["simulations"] += 1
    tally.counts["attempts"] += len(cluster.attempts)
    tally.counts["messages"] += universe.network.message_count
    tally.counts["store requests"] += universe.store.request_count
    tally.counts["callbacks"] += universe.timeline.steps
    tally.counts["virtual seconds"] += result.took_ms // 1_000
    for epoch, records in result.history:
        tally.counts["records"] += len(records)
        tally.outcomes.update(outcomes(records, epoch=epoch))
    tally.close()
