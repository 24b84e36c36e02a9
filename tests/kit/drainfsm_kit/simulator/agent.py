"""One simulated agent: the real ``Agent``, with simulated parts where it touches its machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from drainfsm.errors import DrainfsmError
from drainfsm.log.journal import Journal
from drainfsm.runtime.agent.adapters import RunningAdapters
from drainfsm.runtime.agent.agent import Agent, AgentParts
from drainfsm.runtime.agent.limits import Limits
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.agent.node import Node
from drainfsm.runtime.agent.node_machine import NodeMachine
from drainfsm.runtime.agent.rank_server import Caller, RankEnds, RankServer
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import AttemptEnvironment
from drainfsm.runtime.processes.job import Job
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.store.base import ObjectStore
from drainfsm_kit.simulator.fibers import FiberLock
from drainfsm_kit.simulator.host import SimulatedHostMachine
from drainfsm_kit.simulator.launcher import SimulatedDoor, SimulatedJob
from drainfsm_kit.simulator.machine import Machine, MachineClock
from drainfsm_kit.simulator.process import Process
from drainfsm_kit.simulator.source import Cordon, Platform, loader
from drainfsm_kit.simulator.storage import StoreClient
from drainfsm_kit.simulator.watcher import Watcher

if TYPE_CHECKING:
    from drainfsm_kit.simulator.attempt import SimulatedAttempt

ROUNDING_MS = 2
"""Clocks are read in whole milliseconds."""

DRIFTED_MS = 60
"""What two clocks may drift apart since they were compared, and in a whole attempt."""

BUG = "a bug"
"""With this the runtime begins to tell of its own mistakes."""


class SimulatedAgent:
    def __init__(self, attempt: SimulatedAttempt, node: int, machine: Machine) -> None:
        universe = attempt.universe
        self.attempt = attempt
        self.node = node
        self.machine = machine
        self.process: Process = universe.new_process(f"a{attempt.number}n{node}", machine)
        self.process.on_end = self._ended
        self.platform = Platform()
        self.agent: Agent | None = None
        self.job: SimulatedJob | None = None
        self.promised: dict[str, int | None] = {}
        """When ranks may be killed, in true time, by who said so."""

        self._host_machine: SimulatedHostMachine | None = None
        self.call: Callable[[m.FromCaller], Coroutine[Any, Any, m.NotifyAnswer]] | None = None
        """What ``drainfsm notify`` reaches; None: nobody listens yet."""

        self.exit_by_ms: int | None = None
        """By when it was last told to be gone, in true time; None: no drain is on."""

        self.told_ms = 0
        self.drains_since_ms: int | None = None
        """When it was first told so; None: no drain is on."""

        self.heard: list[tuple[int, int]] = []
        """HARD notices that this agent itself heard: when, and their deadline, in true time."""

        self.stated_ms: list[int] = []
        """The deadlines among them that the notices stated."""

        self.clock = MachineClock()
        """Its own, for life."""

        self.was_stopped = False
        self.killed = False
        """By a fault, not by itself."""

        self.said: list[str] = []
        self._store = StoreClient(universe.store, self.process, universe.timeline, universe.fibers)

    def start(self) -> None:
        self.process.start(self._main())

    async def _main(self) -> int:
        parts = AgentParts(
            check_machine=lambda config: None,
            make_host_machine=self._make_host_machine,
            make_node_machine=self._make_node_machine,
            make_adapters=self._make_adapters,
            make_node=self._make_node,
        )
        config = self.attempt.config(self.node)
        self.clock = self.machine.clock()
        self.agent = Agent(config, warn=self.warn, clock=Clock(self.machine), parts=parts)
        try:
            return await self.agent.live()
        except DrainfsmError as error:
            self.warn(f"{type(error).__name__}: {error}")
            return 1

    @property
    def watcher(self) -> Watcher | None:
        """Of an agent of node 0 whose attempt has something on record."""
        return None if self._host_machine is None else self._host_machine.watcher

    @property
    def listening(self) -> bool:
        """It has joined: its sources are watched, and ``drainfsm notify`` finds it."""
        return self.listened and not self.process.dead

    @property
    def listened(self) -> bool:
        return self.call is not None

    def warn(self, text: str) -> None:
        self.said.append(text)
        if BUG in text:
            self.process.bugs.append(f"{self.process.name}: {text}")

    def _ended(self, process: Process) -> None:
        if self.job is not None and self.machine.powered:
            self.job.agent_ended()
        self.attempt.agent_ended(self)

    def check_promised(self) -> None:
        """Ranks are killed no earlier than whoever said when it would be, by whichever clock."""
        now_ms = self.attempt.universe.timeline.now_ms
        promised_ms = min((by for by in self.promised.values() if by is not None), default=now_ms)
        drifts = any(self.attempt.universe.plan.world.drifts_ppm)
        if now_ms < promised_ms - (DRIFTED_MS if drifts else ROUNDING_MS):
            self.attempt.universe.wrong.append(
                f"{self.process.name} killed its ranks at {now_ms} ms, and had promised "
                f"them the time until {promised_ms} ms"
            )

    # --- parts ----------------------------------------------------------------------------------

    def _make_host_machine(
        self, config: RunConfig, *, others: set[int], warn: Callable[[str], None]
    ) -> SimulatedHostMachine:
        environment = SimulatedEnvironment(self, self._store)
        self._host_machine = SimulatedHostMachine(
            self, environment, config, others=others, warn=warn
        )
        return self._host_machine

    def _make_node_machine(
        self,
        config: RunConfig,
        clock: Clock,
        *,
        others: set[int],
        warn: Callable[[str], None],
    ) -> SimulatedNodeMachine:
        return SimulatedNodeMachine(self, config, clock, others=others, warn=warn)

    def _make_adapters(
        self, config: RunConfig, clock: Clock, *, warn: Callable[[str], None]
    ) -> RunningAdapters:
        universe = self.attempt.universe
        cordon = Cordon(universe.cordon_faults, self.machine.name, universe.tally)
        load = loader(self.platform, cordon)
        return RunningAdapters(config, clock, warn=warn, load=load)

    def _make_node(self, *given: Any) -> Node:
        return WatchedNode(self, *given)


class SimulatedNodeMachine(NodeMachine):
    """Ranks and the job's command are simulated."""

    def __init__(self, agent: SimulatedAgent, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._agent = agent

    def ranks_attach(
        self, ranks: LocalRanks, *, start: LocalStart, call: Caller, ends: RankEnds
    ) -> AbstractAsyncContextManager[None]:
        agent, universe = self._agent, self._agent.attempt.universe
        path = universe.files.base / f"{agent.process.name}.sock"
        path.touch()
        door = SimulatedDoor(str(path), agent.process, universe.timeline)
        agent.process.door = door
        agent.job = SimulatedJob(door, universe.timeline, agent.attempt.spawner(agent))
        agent.call = cast(Any, call)
        return _served(RankServer(ranks, start=start, call=call, ends=ends, warn=self._warn), path)

    def variables(self, *, epoch: int) -> dict[str, str]:
        return {}

    def job(self) -> Job:
        assert self._agent.job is not None
        return self._agent.job

    def limits(self, *, kill: Callable[[str], None], leave: Callable[[], None]) -> Limits:
        def overran(why: str) -> None:
            self._agent.check_promised()
            kill(why)

        return super().limits(kill=overran, leave=leave)


@contextlib.asynccontextmanager
async def _served(server: RankServer, path: Path) -> AsyncIterator[None]:
    await server.listen(path)
    try:
        yield
    finally:
        await server.close()


class WatchedNode(Node):
    """The real one; what it is told is kept, to hold against what it does."""

    def __init__(self, agent: SimulatedAgent, *given: Any) -> None:
        super().__init__(*given)
        self._agent = agent

    def on_order(self, order: n.ToNode) -> None:
        agent, its_clock = self._agent, self._agent.attempt.agents[0].clock
        match order:
            case n.SetBackstop():
                agent.exit_by_ms = _true_ms(order.exit_by_unix_ms, its_clock)
                agent.told_ms = agent.attempt.universe.timeline.now_ms
                if order.exit_by_unix_ms is None:
                    agent.drains_since_ms = None
                elif agent.drains_since_ms is None:
                    agent.drains_since_ms = agent.told_ms
                agent.promised["backstop"] = _true_ms(order.kill_by_unix_ms, its_clock)
            case n.LeaveNode():
                agent.promised["leave"] = _true_ms(order.kill_by_unix_ms, its_clock)
            case _:
                pass
        super().on_order(order)

    def set_own_limit(self, kill_by_unix_ms: int | None) -> None:
        self._agent.promised["own"] = _true_ms(kill_by_unix_ms, self._agent.clock)
        super().set_own_limit(kill_by_unix_ms)


def _true_ms(unix_ms: int | None, clock: MachineClock) -> int | None:
    """When that clock shows it."""
    return None if unix_ms is None else clock.true_ms(unix_ms)


class SimulatedEnvironment(AttemptEnvironment):
    """The state directory on the disk of the machine, and the store some way off."""

    journal: Journal
    """Once the job is claimed."""

    def __init__(self, agent: SimulatedAgent, store: StoreClient) -> None:
        super().__init__(agent.attempt.config(agent.node))
        self._agent = agent
        self._store = store

    def open_store(self) -> ObjectStore:
        return cast(ObjectStore, self._store)

    def pause(self, seconds: float) -> None:
        self._store.pause(seconds)

    def lock(self) -> AbstractContextManager[object]:
        return FiberLock(self._agent.attempt.universe.fibers)

    def open_journal(self, *, epoch: int) -> Journal:
        self.journal = self._agent.machine.disk.open_journal(epoch=epoch)
        return self.journal
