"""What only the simulated agent of node 0 runs: the real coordinator and the real shipper."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from drainfsm.log.shipper import Shipper
from drainfsm.log.shipper import World as LogWorld
from drainfsm.runtime.agent.host import Host
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt import AttemptEnvironment, claim_attempt
from drainfsm.runtime.coordinator.coordinator import Coordinator
from drainfsm.runtime.coordinator.node_server import NodeServer
from drainfsm.runtime.threads import Tasks, in_thread
from drainfsm_kit.simulator.broker import URL
from drainfsm_kit.simulator.watcher import Watcher

if TYPE_CHECKING:
    from drainfsm_kit.simulator.agent import SimulatedAgent
    from drainfsm_kit.simulator.universe import Universe


class SimulatedHost(Host):
    agent: SimulatedAgent
    watcher: Watcher

    @classmethod
    async def begin(
        cls,
        agent: SimulatedAgent,
        environment: AttemptEnvironment,
        config: RunConfig,
        clock: Clock,
        tasks: Tasks,
        *,
        warn: Callable[[str], None],
    ) -> SimulatedHost:
        """``Host.start``, with these environment."""
        attempt = await in_thread(
            "claim", lambda: claim_attempt(config, clock, warn=warn, environment=environment)
        )
        coordinator = Coordinator(attempt, config, clock, warn=warn)
        hub = None
        if config.nnodes > 1:
            hub = NodeServer(coordinator, config, warn=warn)
            await hub.listen(cast(Any, config.coordinator))
        host = cls(config, attempt, coordinator, hub, warn)
        host.agent = agent
        on_phase = agent.attempt.phase_reached
        host.watcher = Watcher(coordinator, attempt.journal, on_phase=on_phase)
        coordinator.follower = host.watcher
        tasks.start(host._run())
        tasks.start(host._connect_log())
        return host

    async def _connect_log(self) -> None:
        universe, disk = self.agent.attempt.universe, self.agent.machine.disk
        shipper = new_shipper(universe, disk, self._config, on_error=self._warn)
        shipper.attach(self._attempt.journal)
        await shipper.start()
        self._shipper = self.watcher.shipper = shipper


def new_shipper(
    universe: Universe, disk: Any, config: RunConfig, *, on_error: Callable[[str], None]
) -> Shipper:
    return Shipper(
        url=URL,
        state_dir=config.state_dir,
        job_id=config.job,
        on_error=on_error,
        sync_always=True,
        world=LogWorld(
            connect=universe.broker.connect,
            journals=disk.journals,
            read_journal=disk.read_journal,
        ),
    )
