"""A simulated rank: a training script with the real session, whose threads are simulated.

It loads, restores, trains in step with the others, saves, and leaves when it is told to.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from drainfsm.core.events import CheckpointRestored
from drainfsm.core.orders import RestoreTarget
from drainfsm.errors import AgentUnreachableError, ConfigError
from drainfsm.runtime.rank.attach import attach_session
from drainfsm.runtime.rank.session import RankSession
from drainfsm.runtime.wire.environment import SOCKET_VARIABLE
from drainfsm_kit.simulator.collective import Collective
from drainfsm_kit.simulator.fibers import Fibers, Resume
from drainfsm_kit.simulator.plan import World
from drainfsm_kit.simulator.rank_saves import RankSaves
from drainfsm_kit.simulator.sockets import RankSocket
from drainfsm_kit.simulator.storage import StoreServer
from drainfsm_kit.simulator.threads import RankThread
from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline

TEARDOWN_MS = (5, 150)
LAG_US_MAX = 2_000
REFUSED_EXIT_CODE = 1


class Door(Protocol):
    """What the launcher and the agent see of the ranks' processes."""

    path: str

    def new_pid(self) -> int: ...
    def ended(self, rank: Rank, exit_code: int) -> None: ...


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of one node share."""

    node: int
    machine: str
    incarnation: str
    world: World
    timeline: Timeline
    fibers: Fibers
    store: StoreServer
    chance: random.Random
    collective: Collective
    door: Door
    wrong: list[str]
    """Rules that were found broken."""


class Rank:
    def __init__(self, number: int, around: Surroundings) -> None:
        self.number = number
        self.around = around
        self.pid = around.door.new_pid()
        self.socket: RankSocket | None = None
        self.restart = 0
        self.alive = True
        self.hung = False
        """The main thread does nothing any more; the reader thread does."""

        self.frozen = False
        """Nor does the reader thread."""

        self.unkillable = False
        """It waits in the kernel."""

        self.orphaned = False
        """It was frozen, or stopped, when its agent was killed."""

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
        self._paused_until_us = 0

    def start(self, environ: dict[str, str]) -> None:
        """``environ``: what its launcher gives it."""
        main = RankThread(self.around.fibers, self, lambda: self._main(environ), is_main=True)
        main.start()

    # --- the training script --------------------------------------------------------------------

    def _main(self, environ: dict[str, str]) -> None:
        try:
            session = attach_session(environ=environ | {SOCKET_VARIABLE: self.around.door.path})
        except (AgentUnreachableError, ConfigError):
            self.end(REFUSED_EXIT_CODE)
            return
        self.restart = session.restart
        saves = RankSaves(self, session)
        session.declare_size(self._world.save_bytes // session.world_size)
        takes_ms = self._world.load_ms + self.around.chance.randint(0, self._world.load_ms)
        self.sleep(takes_ms)
        target = session.restore_target
        if target is not None and not self._restored(session, target, took_ms=takes_ms):
            self.end(REFUSED_EXIT_CODE)
            return
        self.first_step = self.step + 1
        self._train(session, saves)
        session.close()
        self.sleep(self.around.chance.randint(*TEARDOWN_MS))
        self.end(0)

    def _restored(self, session: RankSession, target: RestoreTarget, *, took_ms: int) -> bool:
        """Loads its part: what it is told must be there, whole, and committed."""
        refused = self.around.store.restore(target)
        if refused:
            session.report_restore_refused(
                generation_id=target.generation_id,
                step=target.step,
                error="ChecksumMismatchError",
                reason=refused,
            )
            return False
        self.step, self.restore_ms = target.step, took_ms
        session.report_restored(
            CheckpointRestored(
                generation_id=target.generation_id,
                manifest_digest=target.manifest_digest,
                step=target.step,
                restore_ms=took_ms,
                verification=session.settings.verify,
            )
        )
        return True

    def _train(self, session: RankSession, saves: RankSaves) -> None:
        for step in range(self.step + 1, self._world.step_count):
            if self.phase_next is not None:
                (takes_ms, said_ms), self.phase_next = self.phase_next, None
                with session.phase("eval", None if said_ms is None else said_ms / 1_000):
                    self.sleep(takes_ms)
            self._compute(step)
            self.step = step
            saves.step_done(step)
            if session.step_done(step):
                return

    def _compute(self, step: int) -> None:
        """The step, and the all-reduce at its end."""
        step_us = self._world.step_ms * US_PER_MS * self.slowness
        jitter_us = self.around.chance.randint(0, step_us // 8)

        def arrange(resume: Resume) -> None:
            self.around.collective.enter(
                step,
                lambda step: resume(),
                computed_us=self._timeline.now_us + step_us + jitter_us,
                lag_us=self._lag_us,
            )

        self.around.fibers.block(arrange)

    def sleep(self, for_ms: int) -> None:
        self.around.fibers.block(lambda resume: self._timeline.after(for_ms * US_PER_MS, resume))

    # --- the process ----------------------------------------------------------------------------

    def after(self, delay_us: int, call: Callable[..., None], *args: object) -> None:
        self._timeline.after(delay_us, self._while_alive, call, args)

    def _while_alive(self, call: Callable[..., None], args: tuple[object, ...]) -> None:
        wait_us = self._paused_until_us - self._timeline.now_us
        if wait_us > 0:
            self.after(wait_us, call, *args)
        elif self.alive and not self.frozen:
            call(*args)

    def pause(self, for_ms: int) -> None:
        """SIGSTOP, SIGCONT later: what comes meanwhile is taken then."""
        until_us = self._timeline.now_us + for_ms * US_PER_MS
        self._paused_until_us = max(self._paused_until_us, until_us)

    def agent_gone(self) -> None:
        """The kernel closes the agent's end of the connection."""
        self.orphaned = self.frozen or self._paused_until_us > self._timeline.now_us
        if self.socket is not None:
            self.socket.receive(b"")

    def kill(self, code: int = 137) -> None:
        if self.alive and not self.unkillable:
            self.end(code)

    @property
    def out_of_reach(self) -> bool:
        """Alive, and nobody is left who could end it."""
        return self.unkillable or self.orphaned

    def vanish(self) -> None:
        """Its machine lost power: nobody is told."""
        self.alive = False
        self.ended_us = self._timeline.now_us

    def end(self, code: int) -> None:
        self.alive = False
        self.ended_us = self._timeline.now_us
        if self.socket is not None:
            self.socket.close()
        self.around.door.ended(self, code)
