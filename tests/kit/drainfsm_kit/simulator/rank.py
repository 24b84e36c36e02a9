"""A simulated rank: it trains in step with the others, and obeys the real ``StandingOrders``.

Its reader thread answers while its main thread computes, as in ``runtime.rank``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from drainfsm.core.events import CheckpointRestored, HealthyStepReached
from drainfsm.runtime.rank.orders import LEAVE, PASS, QUIESCE, SAVE, StandingOrders
from drainfsm.runtime.rank.progress import EXACT_STEPS, RECENT_STEPS, STARTING
from drainfsm.runtime.rank.session import LOST_AGENT_EXIT_CODE
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.rank_messages import TRAINING
from drainfsm_kit.simulator.collective import Collective
from drainfsm_kit.simulator.plan import World
from drainfsm_kit.simulator.rank_saves import RankSaves
from drainfsm_kit.simulator.storage import StoreServer
from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline

TEARDOWN_MS = (5, 150)
LAG_US_MAX = 2_000


class Door(Protocol):
    """The agent's end of the socket."""

    def say(self, rank: Rank, message: m.FromRank) -> None: ...
    def ended(self, rank: Rank, exit_code: int) -> None: ...


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of one node share."""

    node: int
    machine: str
    incarnation: str
    world: World
    timeline: Timeline
    store: StoreServer
    chance: random.Random
    collective: Collective
    door: Door


class Rank:
    def __init__(self, number: int, around: Surroundings) -> None:
        self.number = number
        self.around = around
        self.epoch = 0
        self.restart = 0
        self.alive = True
        self.hung = False
        """The main thread does nothing any more; the reader thread does."""

        self.frozen = False
        """Nor does the reader thread."""

        self.unkillable = False
        """It waits in the kernel."""

        self.orphaned = False
        """It was frozen when its agent was killed."""

        self.slowness = 1
        self.phase_next: tuple[int, int | None] | None = None
        """A phase outside the step loop comes next: how long it takes, and is said to take."""

        self.step = -1
        self.first_step: int | None = None
        """The first that this process trained."""

        self.restore_ms: int | None = None
        """How long it took to restore, where it did."""

        self.ended_us: int | None = None
        self._timeline = around.timeline
        self._world = around.world
        self._lag_us = around.chance.randint(0, LAG_US_MAX)
        self._standing = StandingOrders()
        self._saves = RankSaves(self)
        self._attention = True
        self._waiting = False
        self._phase = STARTING
        self._phase_ends_ms: int | None = None
        self._moved_us: int | None = None
        self._recent_ms: deque[int] = deque(maxlen=RECENT_STEPS)
        self._steps_seen = 0

    # --- the reader thread ----------------------------------------------------------------------

    def on_order(self, order: m.ToRank) -> None:
        if not self.alive or self.frozen:
            return
        match order:
            case m.Attached():
                self._attached(order)
            case m.Refused():
                self.exit(1)
            case m.Abort(generation_id=generation):
                self._saves.abort(generation)
            case m.Ask(number=number):
                self.say(self._position(number))
            case _:
                self._standing.accept(order, self._raise_flag)
                if isinstance(order, m.Hold):
                    self.say(self._position(order.number))
                if self._waiting:
                    self._waiting = False
                    self.after(0, self.look)

    def _raise_flag(self) -> None:
        self._attention = True

    def _position(self, number: int) -> m.Position:
        left_ms = None
        if self._phase_ends_ms is not None:
            left_ms = max(0, self._phase_ends_ms - self._timeline.now_ms)
        step_ms = max(self._recent_ms, default=0)
        return m.Position(
            number=number,
            step=self.step,
            step_ms=step_ms,
            phase=self._phase,
            phase_left_ms=left_ms,
        )

    def agent_gone(self) -> None:
        """``RankSession.on_agent_gone``."""
        self.orphaned = self.frozen
        if self.alive and not self.frozen:
            self._end(LOST_AGENT_EXIT_CODE)

    # --- the main thread ------------------------------------------------------------------------

    def _attached(self, welcome: m.Attached) -> None:
        """Load the model, restore, train."""
        self.epoch, self.restart = welcome.epoch, welcome.restart
        self.say(m.SizeDeclared(save_bytes=self._world.save_bytes // welcome.world_size))
        takes_ms = self._world.load_ms + self.around.chance.randint(0, self._world.load_ms)
        if welcome.restore is not None:
            self.step = welcome.restore.step
        self.after(takes_ms * US_PER_MS, self._loaded, welcome, takes_ms)

    def _loaded(self, welcome: m.Attached, took_ms: int) -> None:
        target = welcome.restore
        if target is not None:
            self.around.store.restore(target)
            self.restore_ms = took_ms
            self.say(
                CheckpointRestored(
                    generation_id=target.generation_id,
                    manifest_digest=target.manifest_digest,
                    step=target.step,
                    restore_ms=took_ms,
                    verification=welcome.settings.verify,
                )
            )
        self.first_step = self.step + 1
        self._train()

    def _train(self) -> None:
        """Compute the next step, and meet the others at its end."""
        if self.hung:
            return
        if self.phase_next is not None:
            (takes_ms, said_ms), self.phase_next = self.phase_next, None
            before, self._phase = self._phase, "eval"
            self._phase_ends_ms = None if said_ms is None else self._timeline.now_ms + said_ms
            self.after(takes_ms * US_PER_MS, self._phase_over, before)
            return
        step_us = self._world.step_ms * US_PER_MS * self.slowness
        jitter_us = self.around.chance.randint(0, step_us // 8)
        self.around.collective.enter(
            self.step + 1,
            self._completed,
            computed_us=self._timeline.now_us + step_us + jitter_us,
            lag_us=self._lag_us,
        )

    def _phase_over(self, before: str) -> None:
        self._phase, self._phase_ends_ms = before, None
        self._train()

    def _completed(self, step: int) -> None:
        if not self.alive or self.hung or self.frozen:
            return
        self.step = step
        if self._moved_us is not None:
            self._recent_ms.append((self._timeline.now_us - self._moved_us) // US_PER_MS)
        self._moved_us = self._timeline.now_us
        self._steps_seen += 1
        if self._steps_seen == 1:
            self._phase = TRAINING
            self.say(HealthyStepReached(step=step))
        self._saves.step_done(step)
        self.look()

    def look(self) -> None:
        """At a step boundary: one turn of the loop in ``RankSession._at_boundary``."""
        if not self.alive or self.hung or self.frozen:
            return
        found = (PASS, None) if not self._attention else self._standing.look(self.step, self._relax)
        if found is None:
            self._waiting = True
            return
        action, order = found
        if action is LEAVE or (action is PASS and self.step + 1 >= self._world.step_count):
            self._leave()
        elif action is PASS:
            self._train()
        elif action is QUIESCE:
            self._saves.when_settled(self._quiesced)
        elif action is SAVE and order is not None:
            self._saves.save(order)

    def _relax(self) -> None:
        self._attention = self._steps_seen <= EXACT_STEPS

    def _quiesced(self) -> None:
        self.say(m.Quiesced(step=self.step))
        self.look()

    def _leave(self) -> None:
        self.say(m.Detach())
        teardown_ms = self.around.chance.randint(*TEARDOWN_MS)
        self.after(teardown_ms * US_PER_MS, self.exit, 0)

    # --- the process ----------------------------------------------------------------------------

    def say(self, message: m.FromRank) -> None:
        self.around.door.say(self, message)

    def after(self, delay_us: int, call: Callable[..., None], *args: object) -> None:
        self._timeline.after(delay_us, self._while_alive, call, args)

    def _while_alive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.alive and not self.frozen:
            call(*args)

    def exit(self, code: int) -> None:
        if self.alive and not self.hung:
            self._end(code)

    def kill(self, code: int = 137) -> None:
        if self.alive and not self.unkillable:
            self._end(code)

    @property
    def out_of_reach(self) -> bool:
        """Alive, and nobody is left who could end it."""
        return self.unkillable or self.orphaned

    def vanish(self) -> None:
        """Its machine lost power: nobody is told."""
        self.alive = False
        self.ended_us = self._timeline.now_us

    def _end(self, code: int) -> None:
        self.alive = False
        self.ended_us = self._timeline.now_us
        self.around.door.ended(self, code)
