"""What the ranks of this node start from: asked of the coordinator once per world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m


class LocalStart:
    """A node's side: asks once for the ranks that begin together."""

    def __init__(self, welcome: n.Welcome, ranks: LocalRanks, send: Callable[[n.FromNode], None]):
        self._welcome = welcome
        self._ranks = ranks
        self._send = send
        self._incarnation = ""
        self._answer: asyncio.Future[n.StartRanks] | None = None

    def on_answer(self, answer: n.StartRanks) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    async def ask(self, attach: m.Attach) -> n.StartRanks:
        answer = self._answer
        if answer is None or attach.incarnation != self._incarnation or self._all_gone(answer):
            answer = self._answer = asyncio.get_running_loop().create_future()
            self._incarnation = attach.incarnation
            self._send(n.NodeStarting())
        return await asyncio.shield(answer)

    def attached(self, start: n.StartRanks, *, rank: int, world_size: int) -> m.Attached:
        welcome = self._welcome
        return m.Attached(
            rank=rank,
            node=self._ranks.node,
            world_size=world_size,
            job_id=welcome.job_id,
            epoch=welcome.epoch,
            store_url=welcome.store_url,
            settings=welcome.settings,
            restore=start.restore,
            restart=start.restart,
        )

    def _all_gone(self, answer: asyncio.Future[n.StartRanks]) -> bool:
        return answer.done() and not self._ranks.ranks
