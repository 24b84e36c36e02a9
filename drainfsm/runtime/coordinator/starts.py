"""What ranks start from, when they begin and whenever a launcher starts them again.

The first ranks of an attempt start from its requeue record. Later ones start from the newest
commit: they belong to the same attempt, and must not train again from before what it committed.
All ranks of a world start from the same, so the coordinator decides it once per world.
"""

from __future__ import annotations

import asyncio

from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import DrainfsmError
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt
from drainfsm.runtime.coordinator.decision_loop import DecisionLoop
from drainfsm.runtime.coordinator.nodes import Nodes
from drainfsm.runtime.coordinator.save_committer import SaveCommitter
from drainfsm.runtime.threads import in_thread
from drainfsm.runtime.wire import node_messages as n

SETTLE_S, NEWEST_S = 10.0, 10.0
"""For commits under way to come to their end, and for the store to say what was committed last;
else what is on record counts. The ranks wait for both in ``attach``."""


class Starts:
    """The coordinator's side."""

    def __init__(
        self,
        attempt: ClaimedAttempt,
        decisions: DecisionLoop,
        saves: SaveCommitter,
        nodes: Nodes,
        *,
        layout: dict[str, int],
    ) -> None:
        self._attempt = attempt
        self._decisions = decisions
        self._layout = layout
        self._saves = saves
        self._nodes = nodes
        self._restart = -1
        """How often ranks have been started again inside this attempt; -1: never started."""

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
        state, first = self._decisions.state, self._attempt.target
        newest = state.attempt.committed
        if newest is None or (first and newest.generation_id == first.generation_id):
            return None
        return RestoreTarget(
            generation_id=newest.generation_id,
            manifest_digest=newest.manifest_digest,
            step=newest.step,
            world_size=state.attempt.world_size,
            layout=self._layout,
        )
