"""The rank's side of a drain: ``session.step_done(step)`` and what follows from it.

No torch, no asyncio, no network client: a Unix socket to the agent on this node, and a thread
that reads it. The main thread obeys what the thread reads at its next step boundary.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import index

from drainfsm.core.events import HealthyStepReached
from drainfsm.core.orders import CheckpointSettings, RestoreTarget, SaveOrder
from drainfsm.runtime.output import say_last
from drainfsm.runtime.rank.inbox import Inbox
from drainfsm.runtime.rank.orders import LEAVE, PASS, QUIESCE, SAVE, StandingOrders
from drainfsm.runtime.rank.progress import EXACT_STEPS, STARTING, LearnedPhases, StepTimes
from drainfsm.runtime.rank.reports import Reports
from drainfsm.runtime.rank.shield import pass_by_still
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.frames import encode_frame
from drainfsm.runtime.wire.rank_messages import TRAINING

log = logging.getLogger("drainfsm.rank")
_sessions: weakref.WeakSet[RankSession] = weakref.WeakSet()


class RankSession(Reports):
    """One rank's connection to its agent. Without an agent it trains on as if it were not there."""

    def __init__(
        self,
        welcome: m.Attached,
        connection: socket.socket | None,
    ) -> None:
        self.rank, self.node = welcome.rank, welcome.node
        self.world_size = welcome.world_size
        self.job_id = welcome.job_id
        self.epoch = welcome.epoch
        self.store_url = welcome.store_url
        self.settings: CheckpointSettings = welcome.settings
        self.restore_target: RestoreTarget | None = welcome.restore
        self.restart = welcome.restart
        self.last_step = -1 if welcome.restore is None else welcome.restore.step
        """Last completed step. Written by the main thread only."""

        self.preempted = False
        """A drain has ended the training loop."""

        self._attention = connection is not None
        """The main thread must look at its orders at the next boundary."""

        self._connection = connection
        self._sending = threading.Lock()
        self._orders = StandingOrders()
        self._phases = LearnedPhases()
        self._phase = self._phases.begin(STARTING, expected_s=None)
        self._steps_seen = 0
        self._times = StepTimes(step=self.last_step)
        self._aborted: set[str] = set()
        self._refused = ""
        self._quiesced: list[Callable[[], None]] = []
        self._closing: list[Callable[[], None]] = []
        self._save: Callable[[SaveOrder], None] | None = None
        _sessions.add(self)
        if connection is not None:
            self._inbox = Inbox(connection, self)
            self._inbox.start()

    # --- the training loop ----------------------------------------------------------------------

    def step_done(self, step: int) -> bool:
        """Call after every completed optimizer step. True: leave the training loop now."""
        # The order of these two lines, and its mirror image in ``on_order``, bound how far a rank
        # runs on: the reader raises the flag and then reads the step. If the flag is not seen
        # here, it was raised after this line, so the reader has seen this step: the rank is held
        # at the end of the next one, at most one beyond what was reported for it.
        self.last_step = step
        if self._attention:
            return self._at_boundary(step)
        return False

    def _at_boundary(self, step: int) -> bool:
        step = index(step)  # of numpy, say; anything but a whole number is the script's mistake
        if self._steps_seen <= EXACT_STEPS:
            self._count_first_steps(step)
        while True:
            action, order = self._orders.next(step, self._relax)
            if action is PASS:
                return False
            if action is LEAVE:
                self.preempted = True
                return True
            if action is QUIESCE:
                self._run_quiesced_handlers()
                self._send(m.Quiesced(step=step))
            elif action is SAVE and order is not None:
                self._run_save(order)

    def _count_first_steps(self, step: int) -> None:
        self._steps_seen += 1
        self._times.saw(step)
        if self._steps_seen == 1:
            pass_by_still()
            if self._phase.name == STARTING:
                self._phase = self._phases.begin(TRAINING, expected_s=None)
            self._send(HealthyStepReached(step=step))

    def _relax(self) -> None:
        """Nothing is asked of the rank: the next boundary may be passed without looking."""
        self._attention = self._steps_seen <= EXACT_STEPS

    def _run_quiesced_handlers(self) -> None:
        self._run_all(self._quiesced, "while a save was finished")

    def _run_all(self, handlers: list[Callable[[], None]], when: str) -> None:
        for handler in handlers:
            try:
                handler()
            except Exception as error:  # a failed periodic save stops neither drain nor exit
                log.warning("rank %s: %s: %r", self.rank, when, error)

    def _run_save(self, order: SaveOrder) -> None:
        if order.generation_id in self._aborted:
            return
        if self._save is None:
            self.report_save_failed(order.generation_id, "no save handler: call session.checkpoint")
            return
        try:
            self._save(order)
        except Exception as error:
            self.report_save_failed(order.generation_id, f"{type(error).__name__}: {error}")

    @property
    def draining(self) -> bool:
        """A drain is on: held, running to the stop step, or leaving."""
        return self._orders.draining

    @contextmanager
    def phase(self, name: str, expected_s: float | None = None) -> Iterator[None]:
        """Work outside the step loop (``eval``, ``compile`` …), and how long it may take."""
        before = self._phase
        self._phase = phase = self._phases.begin(name, expected_s=expected_s)
        try:
            with self._times.paused():
                yield
        finally:
            self._phases.end(phase)
            started = before.name == STARTING and self._steps_seen
            self._phase = self._phases.begin(TRAINING, expected_s=None) if started else before

    def between_steps(self) -> AbstractContextManager[None]:
        """What is done inside (a blocking save, say) does not count as the time of a step."""
        return self._times.paused()

    def close(self) -> None:
        """Call right after the loop, on every rank. Saves the last step of a loop that ended by
        itself, finishes the save that is in flight, and reports no more. The process may go on as
        long as it likes, unless a drain ends it."""
        connection = self._connection
        if connection is None:
            return
        self._run_quiesced_handlers()
        with self.phase("closing"):
            self._run_all(self._closing, "while the last step was saved")
        self._send(m.Detach())
        self._attention = False
        self._connection = None
        self._inbox.stop()

    # --- what the checkpoint reports ------------------------------------------------------------

    def on_save(self, handler: Callable[[SaveOrder], None]) -> None:
        """Called on the main thread, held at the stop step; does the whole save and reports it."""
        self._save = handler

    def on_quiesced(self, handler: Callable[[], None]) -> None:
        """Called on the main thread at the stop step, before it is reported."""
        self._quiesced.append(handler)

    def on_close(self, handler: Callable[[], None]) -> None:
        """Called on the main thread when the session is closed, while it can still report."""
        self._closing.append(handler)

    def save_aborted(self, generation_id: str) -> bool:
        """The coordinator gave this save up."""
        return generation_id in self._aborted

    # --- the reader thread ----------------------------------------------------------------------

    def on_order(self, order: m.ToRank) -> None:
        """One message of the agent. Runs on the reader thread."""
        if isinstance(order, m.Abort):
            self._aborted.add(order.generation_id)
            return
        if isinstance(order, m.Refused):
            self._refused = order.reason
            return
        if not isinstance(order, m.Ask):
            self._orders.accept(order, self._raise_flag)
        if isinstance(order, m.Hold | m.Ask):
            self._send(self._position(order.number))  # reads the step after the flag was raised

    def _raise_flag(self) -> None:
        self._attention = True

    def _position(self, number: int) -> m.Position:
        step, phase = index(self.last_step), self._phase
        self._times.saw(step)
        return m.Position(
            number=number,
            step=step,
            step_ms=self._times.longest_ms,
            phase=phase.name,
            phase_left_ms=phase.left_ms(),
        )

    def sample(self) -> None:
        """Called now and then by the reader thread."""
        self._times.saw(index(self.last_step))
        if (step_ms := self._times.news_ms()) is not None:
            self._send(m.StepTime(step_ms=step_ms))

    def on_agent_gone(self, why: str) -> None:
        """Nobody is left to lead a drain, and the node is taken for lost: leave at once."""
        if self._connection is None:
            return
        if self._refused:
            why = f"the agent has refused what this rank says: {self._refused}"
        try:
            say_last(log, f"rank {self.rank}: {why}: this rank ends")
        finally:
            os._exit(REFUSED_EXIT_CODE if self._refused else LOST_AGENT_EXIT_CODE)

    # --- plumbing -------------------------------------------------------------------------------

    def _send(self, message: m.FromRank) -> None:
        connection = self._connection
        if connection is None:
            return
        frame = encode_frame(message)
        try:
            with self._sending:
                connection.sendall(frame)
        except OSError:
            pass  # the reader thread sees the same end of the connection, and acts on it

    def _forget_connection(self) -> None:
        """In a forked child: close the socket, or the agent would not notice the end of the
        rank."""
        connection, self._connection = self._connection, None
        self._attention = False
        if connection is not None:
            with contextlib.suppress(OSError):  # the script may have closed it
                connection.close()


LOST_AGENT_EXIT_CODE = 75
"""EX_TEMPFAIL: the rank did nothing wrong and should run again."""

REFUSED_EXIT_CODE = 1
"""The same script would be refused again."""


def _in_forked_child() -> None:
    for session in list(_sessions):
        session._forget_connection()


os.register_at_fork(after_in_child=_in_forked_child)
