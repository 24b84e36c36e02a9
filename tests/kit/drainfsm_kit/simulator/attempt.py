"""One simulated attempt: the agents that a scheduler started together."""

from __future__ import annotations

import functools
from typing import Protocol

from msgspec.structs import replace

from drainfsm.core.orders import CheckpointSettings
from drainfsm.core.state import Phase, State
from drainfsm.runtime.config import RunConfig
from drainfsm_kit.simulator.agent import SimulatedAgent
from drainfsm_kit.simulator.collective import Collective
from drainfsm_kit.simulator.disk import Disk
from drainfsm_kit.simulator.launcher import SimulatedDoor, Spawn
from drainfsm_kit.simulator.plan import JOB, World
from drainfsm_kit.simulator.rank import Rank, Surroundings
from drainfsm_kit.simulator.source import CORDON, SOURCE
from drainfsm_kit.simulator.storage import URL as STORE_URL
from drainfsm_kit.simulator.universe import Universe


class Scheduler(Protocol):
    """Who starts attempts."""

    def agent_ended(self, agent: SimulatedAgent) -> None: ...
    def phase_reached(self, attempt: SimulatedAttempt, phase: Phase) -> None: ...


class SimulatedAttempt:
    def __init__(
        self, universe: Universe, scheduler: Scheduler, *, number: int, disk: Disk
    ) -> None:
        self.universe = universe
        self.number = number
        self.began_ms = universe.timeline.now_ms
        self.noticed = False
        """One of its agents was given a notice, HARD or SOFT."""

        self._scheduler = scheduler
        self._disk = disk
        self._world: World = universe.plan.world
        self._collectives: dict[str, Collective] = {}
        skews, drifts = self._world.skews_ms, self._world.drifts_ppm
        machines = [
            universe.new_machine(
                f"m{number}-{node}",
                disk if node == 0 else universe.disks[0],
                skew_ms=skews[(number * self._world.node_count + node) % len(skews)],
                drift_ppm=drifts[(number * self._world.node_count + node) % len(drifts)],
            )
            for node in range(self._world.node_count)
        ]
        self.agents = [SimulatedAgent(self, node, machine) for node, machine in enumerate(machines)]

    def start(self) -> None:
        for agent in self.agents:
            agent.start()

    @functools.cached_property
    def _config(self) -> RunConfig:
        world = self._world
        return RunConfig(
            job=JOB,
            store=STORE_URL,
            command=("simulated",),
            nats="nats://simulated",
            nnodes=world.node_count,
            coordinator=f"m{self.number}-0:7000",
            token="simulated",
            source=(SOURCE,),
            grace_s=world.grace_ms / 1_000,
            cordon=CORDON,
            state_dir=self._disk.state_dir,
            heartbeat_s=world.heartbeat_s,
            silence_s=world.silence_s,
            attach_s=world.attach_s,
            allowances=world.allowances,
            checkpoint=CheckpointSettings(every_steps=world.save_every),
        )

    def config(self, node: int) -> RunConfig:
        return replace(self._config, node_rank=node) if node else self._config

    @property
    def state(self) -> State | None:
        """The coordinator's; None: nothing is on record yet."""
        watcher = self.agents[0].watcher
        return None if watcher is None else watcher.state

    def spawner(self, agent: SimulatedAgent) -> Spawn:
        """Makes the ranks of a node."""

        def spawn(door: SimulatedDoor, incarnation: str) -> list[Rank]:
            count = self._world.ranks_per_node
            around = Surroundings(
                node=agent.node,
                machine=agent.machine.name,
                incarnation=incarnation,
                world=self._world,
                timeline=self.universe.timeline,
                fibers=self.universe.fibers,
                wrong=self.universe.wrong,
                store=self.universe.store,
                chance=self.universe.chance.stream(f"ranks/{self.number}/{agent.node}"),
                collective=self._collective(incarnation),
                door=door,
            )
            return [Rank(agent.node * count + n, around) for n in range(count)]

        return spawn

    def _collective(self, incarnation: str) -> Collective:
        found = self._collectives.get(incarnation)
        if found is None:
            found = Collective(self.universe.timeline, world_size=self._world.world_size)
            self._collectives[incarnation] = found
        return found

    def living_ranks(self) -> list[Rank]:
        return [rank for agent in self.agents if agent.job for rank in agent.job.living()]

    def agent_ended(self, agent: SimulatedAgent) -> None:
        self._scheduler.agent_ended(agent)

    def phase_reached(self, phase: Phase) -> None:
        self._scheduler.phase_reached(self, phase)
