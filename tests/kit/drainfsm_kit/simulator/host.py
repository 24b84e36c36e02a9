"""The machine of node 0, simulated: the real coordinator and the real shipper run on it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from drainfsm.core.state import State
from drainfsm.log.journal import Journal
from drainfsm.log.server import NatsServer
from drainfsm.log.shipper import Shipper
from drainfsm.log.shipper import World as LogWorld
from drainfsm.runtime.agent.host_machine import HostMachine
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import AttemptEnvironment
from drainfsm.runtime.coordinator.evidence import PastAttempts
from drainfsm_kit.simulator.broker import URL
from drainfsm_kit.simulator.watcher import Watcher

if TYPE_CHECKING:
    from drainfsm_kit.simulator.agent import SimulatedAgent, SimulatedEnvironment
    from drainfsm_kit.simulator.universe import Universe


class SimulatedHostMachine(HostMachine):
    def __init__(
        self,
        agent: SimulatedAgent,
        environment: SimulatedEnvironment,
        config: RunConfig,
        *,
        others: set[int],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(config, others=others, warn=warn)
        self.watcher: Watcher | None = None
        self._agent = agent
        self._environment = environment

    def bind(self) -> socket.socket:
        return cast(socket.socket, self._config.coordinator)

    def environment(self) -> AttemptEnvironment:
        return self._environment

    async def evidence(self, *, before_epoch: int) -> PastAttempts:
        return PastAttempts()

    def recorded(self, state: State) -> None:
        if self.watcher is None:
            on_phase = self._agent.attempt.phase_reached
            self.watcher = Watcher(self._environment.journal, on_phase=on_phase)
        self.watcher.recorded(state)

    async def give_signs_of_life(self, *, epoch: int) -> None:
        """Nobody looks from outside."""

    def write_run_info(self, *, epoch: int, nats_url: str) -> None:
        """Nobody looks from outside."""

    async def log_server(self, journal: Journal) -> NatsServer:
        return NatsServer(url=URL)

    def shipper(self, server: NatsServer) -> Shipper:
        return new_shipper(self._agent.attempt.universe, self._config, on_error=self._warn)


def new_shipper(
    universe: Universe, config: RunConfig, *, on_error: Callable[[str], None]
) -> Shipper:
    return Shipper(
        server=URL,
        state_dir=config.state_dir,
        job_id=config.job,
        on_error=on_error,
        sync_always=True,
        world=LogWorld(connect=universe.broker.connect, noted=False),
    )
