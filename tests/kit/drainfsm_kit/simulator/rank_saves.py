"""What a simulated rank writes: its part of the drain's save, and of periodic ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainfsm.core.orders import SaveOrder
from drainfsm.core.state import periodic_id
from drainfsm.runtime.rank.session import RankSession
from drainfsm_kit.simulator.timeline import US_PER_MS

if TYPE_CHECKING:
    from drainfsm_kit.simulator.rank import Rank

STAGED_PART = 4
"""Staging takes this part of a write."""

GIVE_UP_MS = 2_020
"""``GIVE_UP_S`` and a poll of ``checkpoint.saving``."""

POLL_MS = 100
RETRY_MS = 20
"""After storage that hung answers again."""


class RankSaves:
    def __init__(self, rank: Rank, session: RankSession) -> None:
        self._rank = rank
        self._around = rank.around
        self._session = session
        self._under_way = ""
        self._periodic = ""
        """The one beside training."""

        session.on_save(self._save)
        session.on_quiesced(self._finish)

    def step_done(self, step: int) -> None:
        every = self._around.world.save_every
        if not every or (step + 1) % every or self._periodic:
            return
        session = self._session
        self._periodic = periodic_id(epoch=session.epoch, step=step, restart=session.restart)
        session.report_save_began(self._periodic, step)
        self._begin(self._periodic, step)

    def _finish(self) -> None:
        """Once no periodic save is under way: at once, usually."""
        while self._periodic:
            self._rank.sleep(POLL_MS)

    def _save(self, order: SaveOrder) -> None:
        """The drain's. The main thread is in it until it is over, or the coordinator has given it
        up: then it does not wait for it much longer."""
        self._under_way = order.generation_id
        self._begin(order.generation_id, self._session.last_step)
        left_ms = GIVE_UP_MS
        while self._under_way and left_ms > 0:
            self._rank.sleep(POLL_MS)
            left_ms -= POLL_MS if self._session.save_aborted(order.generation_id) else 0

    def _begin(self, generation: str, step: int) -> None:
        rank, world, around = self._rank, self._around.world, self._around
        if not around.store.begin(generation, around.incarnation):
            self._session.report_save_failed(generation, "it is there already")
            self._over(generation)
            return
        takes_ms = round(world.write_ms * around.chance.uniform(0.7, 1.0)) * rank.slowness
        if (slow := around.store.faults.active("slow", around.machine)) is not None:
            around.store.tally.hit("store_slow")
            takes_ms += slow.amount * 4
        rank.after(takes_ms * US_PER_MS // STAGED_PART, self._staged, generation)
        rank.after(takes_ms * US_PER_MS, self._end, generation, step, around.timeline.now_ms)

    def _staged(self, generation: str) -> None:
        self._session.report_staged(generation, self._around.world.rank_bytes)

    def _end(self, generation: str, step: int, began_ms: int) -> None:
        around, session = self._around, self._session
        if (hung := around.store.faults.active("hung", around.machine)) is not None:
            around.store.tally.hit("store_hung")
            wait_us = hung.until_us - around.timeline.now_us + RETRY_MS * US_PER_MS
            self._rank.after(wait_us, self._end, generation, step, began_ms)
            return
        if self._rank.hung:
            return
        reason = around.store.refuses(around.machine)
        if session.save_aborted(generation):
            pass
        elif reason:
            session.report_save_failed(generation, reason)
        else:
            entry = around.store.write(
                generation, self._rank.number, size_bytes=around.world.rank_bytes, step=step
            )
            session.report_durable(generation, [entry], around.timeline.now_ms - began_ms)
            session.declare_size(entry.size_bytes)
        self._over(generation)

    def _over(self, generation: str) -> None:
        if generation == self._under_way:
            self._under_way = ""
        if generation == self._periodic:
            self._periodic = ""
