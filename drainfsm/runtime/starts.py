"""What ranks start from, when they begin and whenever a launcher starts them again.

The first ranks of an attempt start from its requeue record. Later ones start from the newest
commit: theirs is no new attempt, and nothing that was committed may be trained on from before it.
All ranks of a world start from the same, so the coordinator decides it once for a world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import DrainfsmError
from drainfsm.runtime import messages as m
from drainfsm.runtime import node_messages as n
from drainfsm.runtime.attempt import Attempt
from drainfsm.runtime.ledger import Ledger
from drainfsm.runtime.local_ranks import LocalRanks
from drainfsm.runtime.nodes import Nodes
from drainfsm.runtime.save_keeper import SaveKeeper
from drainfsm.runtime.threads import in_thread

SETTLE_S, NEWEST_S = 10.0, 10.0
"""For commits under way to come to their end, and for the store to say what was committed last;
else what is on record counts. The ranks wait for both in ``attach``."""


class Starts:
    """The coordinator's side."""

    def __init__(
        self,
        attempt: Attempt,
        ledger: Ledger,
        saves: SaveKeeper,
        nodes: Nodes,
        *,
        layout: dict[str, int],
    ) -> None:
        self._attempt = attempt
        self._ledger = ledger
        self._layout = layout
        self._saves = saves
        self._nodes = nodes
        self._restart = -1
        """How often ranks have been started again inside this attempt; -1: not once started."""

        self._decision: asyncio.Task[n.StartRanks] | None = None
        """Stands until the world is whole: no save can come to its end before."""

    async def tell(self, node: int) -> None:
        if self._decision is None:
            self._restart += 1
            self._decision = asyncio.get_running_loop().create_task(self._decide(self._restart))
        self._nodes.tell(await asyncio.shield(self._decision), (node,))

    def formed(self, *, whole: bool) -> None:
        if whole:
            self._decision = None

    async def _decide(self, restart: int) -> n.StartRanks:
        if restart == 0:
            return n.StartRanks(restore=self._attempt.target, restart=restart)
        await self._saves.forsake("its ranks were started again", timeout_s=SETTLE_S)
        try:
            async with asyncio.timeout(NEWEST_S):
                newest = await in_thread("newest", self._attempt.publisher.begin_again)
        except (TimeoutError, DrainfsmError, OSError):
            newest = self._recorded
        return n.StartRanks(restore=newest or self._attempt.target, restart=restart)

    @property
    def _recorded(self) -> RestoreTarget | None:
        """The newest commit of this attempt as far as the log knows."""
        state, first = self._ledger.state, self._attempt.target
        newest = state.committed
        if newest is None or (first and newest.generation_id == first.generation_id):
            return None
        return RestoreTarget(
            generation_id=newest.generation_id,
            manifest_digest=newest.manifest_digest,
            step=newest.step,
            world_size=state.world_size,
            layout=self._layout,
        )


class LocalStart:
    """A node's side: asks once for the ranks that begin together."""

    def __init__(self, welcome: n.Welcome, ranks: LocalRanks, send: Callable[[n.FromNode], None]):
        self._welcome = welcome
        self._ranks = ranks
        self._send = send
        self._incarnation = ""
        self._told: asyncio.Future[n.StartRanks] | None = None

    def on_told(self, told: n.StartRanks) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(told)

    async def told(self, attach: m.Attach) -> n.StartRanks:
        told = self._told
        if told is None or attach.incarnation != self._incarnation or self._all_gone(told):
            told = self._told = asyncio.get_running_loop().create_future()
            self._incarnation = attach.incarnation
            self._send(n.NodeStarting())
        return await asyncio.shield(told)

    def attached(self, start: n.StartRanks, *, rank: int, world_size: int) -> m.Attached:
        welcome = self._welcome
        return m.Attached(
            rank=rank,
            world_size=world_size,
            job_id=welcome.job_id,
            epoch=welcome.epoch,
            store_url=welcome.store_url,
            settings=welcome.settings,
            restore=start.restore,
            restart=start.restart,
        )

    def _all_gone(self, told: asyncio.Future[n.StartRanks]) -> bool:
        return told.done() and not self._ranks.ranks
