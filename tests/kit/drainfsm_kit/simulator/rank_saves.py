"""What a simulated rank writes: its part of the drain's save, and of periodic ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainfsm.core.orders import SaveOrder
from drainfsm.core.state import periodic_id
from drainfsm.runtime.wire import rank_messages as m
from drainfsm_kit.simulator.timeline import US_PER_MS

if TYPE_CHECKING:
    from drainfsm_kit.simulator.rank import Rank

STAGED_PART = 4
"""Staging takes this part of a write."""

GIVE_UP_MS = 2_020
"""``GIVE_UP_S`` and a poll of ``checkpoint.saving``."""

RETRY_MS = 20
"""After storage that hung answers again."""


class RankSaves:
    def __init__(self, rank: Rank) -> None:
        self.aborted: set[str] = set()
        """Given up by the coordinator."""

        self._rank = rank
        self._around = rank.around
        self._periodic = ""
        """The one under way beside training."""

        self._drains = ""
        """The one that the main thread is in."""

        self._when_settled: Callable[[], None] | None = None

    def step_done(self, step: int) -> None:
        every = self._around.world.save_every
        if not every or (step + 1) % every or self._periodic:
            return
        rank = self._rank
        self._periodic = periodic_id(epoch=rank.epoch, step=step, restart=rank.restart)
        rank.say(m.SaveBegan(generation_id=self._periodic, step=step))
        self._begin(self._periodic, step)

    def abort(self, generation: str) -> None:
        """The coordinator gave the save up: the main thread does not wait for it much longer."""
        self.aborted.add(generation)
        if generation == self._drains:
            self._rank.after(GIVE_UP_MS * US_PER_MS, self._over, generation)

    def when_settled(self, call: Callable[[], None]) -> None:
        """Once no periodic save is under way: at once, usually."""
        if self._periodic:
            self._when_settled = call
        else:
            call()

    def save(self, order: SaveOrder) -> None:
        """The drain's. The main thread is in it until it is over."""
        if order.generation_id in self.aborted:
            self._rank.look()
        else:
            self._drains = order.generation_id
            self._begin(order.generation_id, self._rank.step)

    def _begin(self, generation: str, step: int) -> None:
        rank, world, around = self._rank, self._around.world, self._around
        if not around.store.begin(generation, around.incarnation):
            rank.say(m.SaveFailed(generation_id=generation, reason="it is there already"))
            rank.after(0, self._over, generation)
            return
        takes_ms = round(world.write_ms * around.chance.uniform(0.7, 1.0)) * rank.slowness
        if (slow := around.store.faults.active("slow", around.machine)) is not None:
            around.store.tally.hit("store_slow")
            takes_ms += slow.amount * 4
        staged = m.Staged(generation_id=generation, staged_bytes=world.rank_bytes)
        rank.after(takes_ms * US_PER_MS // STAGED_PART, rank.say, staged)
        rank.after(takes_ms * US_PER_MS, self._end, generation, step, around.timeline.now_ms)

    def _end(self, generation: str, step: int, began_ms: int) -> None:
        around = self._around
        if (hung := around.store.faults.active("hung", around.machine)) is not None:
            around.store.tally.hit("store_hung")
            wait_us = hung.until_us - around.timeline.now_us + RETRY_MS * US_PER_MS
            self._rank.after(wait_us, self._end, generation, step, began_ms)
            return
        if self._rank.hung:
            return
        reason = around.store.refuses(around.machine)
        if generation in self.aborted:
            pass
        elif reason:
            self._rank.say(m.SaveFailed(generation_id=generation, reason=reason))
        else:
            entry = around.store.write(
                generation, self._rank.number, size_bytes=around.world.rank_bytes, step=step
            )
            durable_ms = around.timeline.now_ms - began_ms
            self._rank.say(
                m.DurableFiles(generation_id=generation, entries=(entry,), durable_ms=durable_ms)
            )
            self._rank.say(m.SizeDeclared(save_bytes=entry.size_bytes))
        self._over(generation)

    def _over(self, generation: str) -> None:
        if generation == self._drains:
            self._drains = ""
            self._rank.look()
        if generation != self._periodic:
            return
        self._periodic = ""
        call, self._when_settled = self._when_settled, None
        if call is not None:
            call()
