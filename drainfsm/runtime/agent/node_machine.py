"""What a node needs of its machine: the job's processes, and the socket at which ranks attach."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from drainfsm.errors import ConfigError
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
        with contextlib.ExitStack() as links:
            await self._open(server, self._socket, links)
            staying = asyncio.create_task(self._stay_open(server, links))
            try:
                yield
            finally:
                staying.cancel()
                await server.close()

    async def _open(self, server: RankServer, socket: Path, links: contextlib.ExitStack) -> None:
        socket.unlink(missing_ok=True)
        await server.listen(socket)
        links.callback(socket.unlink, missing_ok=True)
        config = self._config
        links.enter_context(
            paths.control_link(socket, config.state_dir, job=config.job, node_rank=config.node_rank)
        )

    async def _stay_open(self, server: RankServer, links: contextlib.ExitStack) -> None:
        """A logout takes the user's runtime directory along, and ``/tmp`` is cleared of what is
        old: ranks that start again, and ``drainfsm notify``, find the agent nevertheless."""
        config, place = self._config, self._socket
        link = functools.partial(
            paths.control_link_path, config.state_dir, job=config.job, node_rank=config.node_rank
        )
        while True:
            await asyncio.sleep(config.heartbeat_s)
            with contextlib.suppress(OSError, ConfigError):  # it may be better the next time
                if place.is_socket() and link().is_symlink():
                    continue
                place = paths.agent_socket(
                    config.state_dir, job=config.job, node_rank=config.node_rank
                )
                await self._open(server, place, links)
                self._warn(f"the agent's socket was removed: it listens again, at {place}")

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
