"""What each class of fault does. A function answers whether it took effect at once.

Those that open a window answer False: they are counted where they hit something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainfsm_kit.simulator.plan import Happening
from drainfsm_kit.simulator.rank import Rank
from drainfsm_kit.simulator.timeline import US_PER_MS
from drainfsm_kit.simulator.windows import Windows

if TYPE_CHECKING:
    from drainfsm_kit.simulator.agent import SimulatedAgent
    from drainfsm_kit.simulator.cluster import Cluster

Fault = Callable[["Cluster", "SimulatedAgent", Happening], bool]
FAULTS: dict[str, Fault] = {}
ONE_MACHINE_PART = 3
"""Every so many-th fault of the store concerns one machine alone."""


def _fault(fault: Fault) -> Fault:
    FAULTS[fault.__name__] = fault
    return fault


def _open(windows: Windows, kind: str, event: Happening, *, machine: str = "") -> bool:
    windows.add(kind, for_ms=event.for_ms, amount=event.amount, machine=machine)
    return False


# --- clocks and network -------------------------------------------------------------------------


@_fault
def clock_step(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    agent.machine.skew_ms += event.amount if event.for_ms % 2 else -event.amount
    return not agent.process.dead


@_fault
def delay(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    cluster.universe.network.delay(agent.machine.name, event.amount, event.for_ms)
    return False


@_fault
def cut(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    return cluster.universe.network.cut(agent.process) > 0


@_fault
def silence(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """Of one direction, or of both: a partition."""
    network, this = cluster.universe.network, agent.machine.name
    for other in agent.attempt.agents:
        if other is not agent:
            network.silence(this, other.machine.name, event.for_ms)
            if event.amount > 1:
                network.silence(other.machine.name, this, event.for_ms)
    return False


# --- broker, store, disk ------------------------------------------------------------------------


def _windows_of(name: str) -> Fault:
    part, _, kind = name.partition("_")

    def fault(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
        match part:
            case "broker":
                return _open(cluster.universe.broker.faults, kind, event)
            case "store":
                one = event.for_ms % ONE_MACHINE_PART == 0
                machine = agent.machine.name if one else ""
                return _open(cluster.universe.store.faults, kind, event, machine=machine)
            case "journal":
                return _open(agent.attempt.agents[0].machine.disk.faults, kind, event)
            case _:
                faults, machine = cluster.universe.cordon_faults, agent.machine.name
                return _open(faults, kind, event, machine=machine)

    return fault


for _name in (
    *("broker_away", "broker_mute"),
    *("store_away", "store_mute", "store_late", "store_hung", "store_slow", "store_full"),
    *("store_stale", "store_garbled"),
    *("store_lies", "journal_full", "journal_slow", "journal_hung"),
    *("cordon_failed", "cordon_hung"),
):
    FAULTS[_name] = _windows_of(_name)


@_fault
def store_power(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """The machine behind the store restarts."""
    store = cluster.universe.store
    store.lose_power()
    store.faults.add("away", for_ms=event.for_ms)
    return False


@_fault
def store_fsync_lies(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """Its disk says that it has synced, until the power fails."""
    store = cluster.universe.store
    store.files.faults.add("lies", for_ms=event.for_ms)
    cluster.universe.timeline.after(event.for_ms * US_PER_MS, store.lose_power)
    return False


@_fault
def journal_fsync_lies(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """The same of node 0's disk, and of its machine."""
    first = agent.attempt.agents[0]
    first.machine.disk.faults.add("lies", for_ms=event.for_ms)
    cluster.universe.timeline.after(event.for_ms * US_PER_MS, _host_off, cluster, first)
    return False


@_fault
def journal_damaged(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """Of the newest attempt, or one before it."""
    disk = agent.attempt.agents[0].machine.disk
    epochs = disk.epochs
    if not epochs:
        return False
    epoch = epochs[-1 - event.amount % min(2, len(epochs))]
    return disk.damage(epoch=epoch, at=event.amount / 1_001)


@_fault
def frame_garbled(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    cluster.universe.network.garble(agent.process, count=event.amount)
    return False


@_fault
def broker_rollback(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    return cluster.universe.broker.roll_back(event.amount) > 0


# --- ranks --------------------------------------------------------------------------------------


def _rank(agent: SimulatedAgent, event: Happening) -> Rank | None:
    living = agent.job.living() if agent.job is not None else []
    return living[event.rank % len(living)] if living else None


def _on_rank(name: str, change: Callable[[Rank, Happening], None]) -> None:
    def fault(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
        rank = _rank(agent, event)
        if rank is not None:
            change(rank, event)
        return rank is not None

    FAULTS[name] = fault


def _hang(rank: Rank, event: Happening) -> None:
    rank.hung = True


def _freeze(rank: Rank, event: Happening) -> None:
    rank.frozen = True


def _slow(rank: Rank, event: Happening) -> None:
    rank.slowness = event.amount


def _busy(rank: Rank, event: Happening) -> None:
    """Longer than it said, or it did not say."""
    said_ms = event.for_ms // 2 if event.amount > 1 else None
    rank.phase_next = (event.for_ms, said_ms)


def _pause(rank: Rank, event: Happening) -> None:
    rank.pause(event.for_ms)


def _stick(rank: Rank, event: Happening) -> None:
    rank.hung = rank.unkillable = True


_on_rank("rank_hung", _hang)
_on_rank("rank_frozen", _freeze)
_on_rank("rank_paused", _pause)
_on_rank("rank_dead", lambda rank, event: rank.kill(139))
_on_rank("rank_slow", _slow)
_on_rank("rank_busy", _busy)
_on_rank("rank_unkillable", _stick)


@_fault
def ranks_restarted(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """The launcher starts all ranks again, as torchrun does after a failure: it counts that on the
    node of the failure alone."""
    agents = [one for one in agent.attempt.agents if one.job is not None]
    name = f"incarnation-{cluster.universe.timeline.now_us}"
    restarted = [one.job.restart(name, counted=one is agent) for one in agents if one.job]
    return len(agents) == len(agent.attempt.agents) and all(restarted)


@_fault
def source_failed(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    agent.platform.fail()
    return not agent.process.dead


# --- processes and machines ---------------------------------------------------------------------


def _kill(agent: SimulatedAgent) -> bool:
    if agent.process.dead:
        return False
    agent.killed = True
    agent.process.kill()
    return True


def _power_off(agent: SimulatedAgent) -> bool:
    if agent.process.dead:
        return False
    agent.machine.powered = False
    if agent.job is not None:
        agent.job.power_off()
    return _kill(agent)


@_fault
def agent_dead(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    return agent.node > 0 and _kill(agent)


@_fault
def coordinator_dead(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    return _kill(agent.attempt.agents[0])


@_fault
def node_lost(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    return agent.node > 0 and _power_off(agent)


@_fault
def host_lost(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    return _host_off(cluster, agent.attempt.agents[0])


def _host_off(cluster: Cluster, first: SimulatedAgent) -> bool:
    """Of node 0, with its disk, and with whatever attempt still runs on that."""
    if not _power_off(first):
        return False
    for attempt in cluster.attempts:
        if attempt.agents[0].machine.disk is first.machine.disk:
            _power_off(attempt.agents[0])
    first.machine.disk.files.lose_power()
    return True


@_fault
def paused(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """SIGSTOP to an agent, SIGCONT later: nobody else knows."""
    if agent.process.dead or agent.process.stopped:
        return False
    agent.was_stopped = True
    agent.process.stop()
    cluster.universe.timeline.after(event.for_ms * US_PER_MS, agent.process.resume)
    return True


@_fault
def takeover(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """The scheduler takes a running attempt for dead."""
    return not agent.attempt.agents[0].process.dead and cluster.start_next(agent.attempt)


@_fault
def stopped(cluster: Cluster, agent: SimulatedAgent, event: Happening) -> bool:
    """SIGSTOP to the coordinator's process, SIGCONT later; the scheduler starts another."""
    first = agent.attempt.agents[0]
    if first.process.dead or first.process.stopped:
        return False
    first.was_stopped = True
    first.process.stop()
    cluster.universe.timeline.after(event.for_ms * US_PER_MS, first.process.resume)
    cluster.start_next(agent.attempt, after_ms=event.for_ms // 4)
    return True
