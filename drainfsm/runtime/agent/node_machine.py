"""What a node needs of its machine: the job's processes, and the socket at which ranks attach."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from drainfsm.runtime import paths
from drainfsm.runtime.agent.limits import Limits
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.agent.rank_server import Caller, RankEnds, RankServer
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.processes.job import Job
from drainfsm.runtime.rank.placement import placed_outside
from drainfsm.runtime.wire.environment import (
    EPOCH_VARIABLE,
    OUTSIDE_VARIABLE,
    SOCKET_VARIABLE,
)


class NodeMachine:
    """The simulator has another one. A node asks for everything once, ``ranks_attach`` first."""

    def __init__(
        self, config: RunConfig, clock: Clock, *, others: set[int], warn: Callable[[str], None]
    ) -> None:
        """``others``: ids of processes that are not the job's."""
        self._config = config
        self._clock = clock
        self._others = others
        self._warn = warn

    def ranks_attach(
        self, ranks: LocalRanks, *, start: LocalStart, call: Caller, ends: RankEnds
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """While inside, ranks can attach, and ``drainfsm notify`` finds the agent."""
        server = RankServer(ranks, start=start, call=call, ends=ends, warn=self._warn)
        return self._listening(server)

    @contextlib.asynccontextmanager
    async def _listening(self, server: RankServer) -> AsyncIterator[None]:
        config = self._config
        self._socket.unlink(missing_ok=True)
        await server.listen(self._socket)
        try:
            with paths.control_link(
                self._socket, config.state_dir, job=config.job, node_rank=config.node_rank
            ):
                yield
        finally:
            await server.close()
            self._socket.unlink(missing_ok=True)

    @functools.cached_property
    def _socket(self) -> Path:
        config = self._config
        return paths.agent_socket(config.state_dir, job=config.job, node_rank=config.node_rank)

    def variables(self, *, epoch: int) -> dict[str, str]:
        """By which the job's processes find their agent."""
        return {
            SOCKET_VARIABLE: str(self._socket),
            EPOCH_VARIABLE: str(epoch),
            OUTSIDE_VARIABLE: placed_outside(os.environ),
        }

    def job(self) -> Job:
        """The command, not yet started."""
        return Job(self._config.command, signals=self._config.signals, others=self._others)

    def limits(self, *, kill: Callable[[str], None], leave: Callable[[], None]) -> Limits:
        return Limits(self._clock, kill=kill, leave=leave)
