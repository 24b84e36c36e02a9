"""The coordinator's side of saves: from the ranks' reports to the commit record."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Sample
from drainfsm.core.deadline import exit_plan_of
from drainfsm.core.state import State
from drainfsm.errors import DrainfsmError, FencedError
from drainfsm.runtime.clock import Clock, loop_ms
from drainfsm.runtime.coordinator.decision_loop import DecisionLoop
from drainfsm.runtime.coordinator.nodes import Nodes
from drainfsm.runtime.coordinator.publisher import Published, Publisher
from drainfsm.runtime.coordinator.saves import Saves, Written
from drainfsm.runtime.threads import Tasks, in_thread
from drainfsm.runtime.wire import node_messages as n

T = TypeVar("T")

WAITING_MAX = 4
"""Periodic saves that wait to be committed."""

PERIODIC_COMMIT_S = 60.0
"""For verifying and committing a periodic save. Longer means that the store hangs."""

SaveReport = n.NodeSaveBegan | n.NodeStaged | n.NodeDurable | n.NodeSaveFailed


class SaveCommitter:
    def __init__(
        self,
        saves: Saves,
        publisher: Publisher,
        decisions: DecisionLoop,
        nodes: Nodes,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._saves = saves
        self._publisher = publisher
        self._decisions = decisions
        self._nodes = nodes
        self._tasks = tasks
        self._clock = clock
        self._written: dict[str, Written] = {}
        self._given_up: dict[str, threading.Event] = {}
        self._waiting: deque[Written] = deque()
        """Periodic saves that are not committed yet, oldest first."""

        self._committing = False
        self._commits: set[asyncio.Task[None]] = set()
        """Under way: not yet on record."""

    # --- reports of the nodes -------------------------------------------------------------------

    def on_node(self, node: int, message: SaveReport) -> None:
        is_drains = message.generation_id == self._drains_save
        match message:
            case n.NodeSaveBegan(generation_id=generation_id, step=step):
                self._saves.begin(generation_id, step=step)
            case n.NodeStaged():
                staged = self._saves.staged(node, message)
                if staged is not None and is_drains:
                    self._decisions.submit(
                        i.ReportStaged(
                            generation_id=staged.generation_id,
                            staged_bytes=staged.staged_bytes,
                            rank_count=staged.rank_count,
                        )
                    )
            case n.NodeDurable():
                written = self._saves.durable(node, message)
                if written is not None:
                    self._on_written(written, is_drains=is_drains)
            case n.NodeSaveFailed():
                self._on_failed(message, is_drains=is_drains)

    def _on_written(self, written: Written, *, is_drains: bool) -> None:
        if not is_drains:
            self._commit_in_turn(written)
            return
        self._written[written.generation_id] = written
        self._decisions.submit(
            i.ReportDurable(
                generation_id=written.generation_id,
                durable_bytes=written.total_bytes,
                file_count=len(written.entries),
                rank_count=len(written.file_counts),
            )
        )

    def _commit_in_turn(self, written: Written) -> None:
        """One commit at a time. Where saves come faster than the store takes commits, those that
        have waited longest are dropped for newer ones."""
        self._waiting.append(written)
        while len(self._waiting) > WAITING_MAX:
            over = self._waiting.popleft()
            self._decisions.submit(
                e.CheckpointFailed(
                    generation_id=over.generation_id,
                    step=over.step,
                    reason=f"overtaken: newer saves, up to step {written.step}, wait to be "
                    "committed; save less often",
                )
            )
        if not self._committing:
            self._committing = True
            self._commit(self._commit_waiting())

    async def _commit_waiting(self) -> None:
        try:
            while self._waiting:
                await self._commit_periodic(self._waiting.popleft())
        finally:
            self._committing = False

    def _on_failed(self, failed: n.NodeSaveFailed, *, is_drains: bool) -> None:
        generation_id, reason, memory = failed.generation_id, failed.reason, failed.memory
        step = self._saves.drop(generation_id)
        if is_drains:
            self._decisions.submit(
                i.ReportSaveFailed(generation_id=generation_id, reason=reason, memory=memory)
            )
        elif step is not None:
            self._nodes.tell(n.AbortNode(generation_id=generation_id))
            self._decisions.submit(
                e.CheckpointFailed(
                    generation_id=generation_id, step=step, reason=reason, memory=memory
                )
            )

    @property
    def _drains_save(self) -> str | None:
        """Its generation; None: no drain has saved."""
        save = self._decisions.state.save
        return None if save is None else save.generation_id

    # --- the drain's save -----------------------------------------------------------------------

    def begin(self, generation_id: str, *, step: int) -> None:
        self._given_up[generation_id] = threading.Event()
        self._saves.begin(generation_id, step=step)

    def abort(self, generation_id: str) -> None:
        self._saves.drop(generation_id)
        if (given_up := self._given_up.get(generation_id)) is not None:
            given_up.set()
        self._nodes.tell(n.AbortNode(generation_id=generation_id))

    async def verify(self, generation_id: str, state: State) -> None:
        written = self._written[generation_id]
        verified = await self._ask_store(
            "verify",
            state,
            generation_id,
            lambda: self._publisher.verify(written, world_size=state.attempt.world_size),
        )
        if verified is not None:
            self._decisions.submit(verified)

    def publish(self, generation_id: str, state: State) -> None:
        """Begins it."""
        self._commit(self._publish(generation_id, state))

    async def _publish(self, generation_id: str, state: State) -> None:
        written, given_up = self._written[generation_id], self._given_up[generation_id]
        published = await self._ask_store(
            "publish",
            state,
            generation_id,
            lambda: self._publisher.publish(
                written, world_size=state.attempt.world_size, given_up=given_up
            ),
        )
        if published is not None:
            await self._decisions.submit(
                i.ReportPublished(
                    generation_id=generation_id,
                    manifest_digest=published.manifest_digest,
                    slot=published.slot,
                )
            )

    async def _ask_store(
        self, what: str, state: State, generation_id: str, work: Callable[[], T]
    ) -> T | None:
        """The answer, if it comes before the ranks must leave; else the failure is reported."""
        leave_by = exit_plan_of(state).leave_by_unix_ms
        try:
            async with asyncio.timeout(self._clock.seconds_until(leave_by)):
                return await in_thread(what, work)
        except TimeoutError:
            reason = f"{what}: the store did not answer in time"
        except FencedError as error:
            self._decisions.submit(i.ReportFenced(by_epoch=error.newest_epoch))
            reason = f"{what}: {error}"
        except (DrainfsmError, OSError) as error:
            reason = f"{what}: {error}"
        self._decisions.submit(i.ReportSaveFailed(generation_id=generation_id, reason=reason))
        return None

    async def forsake(self, reason: str, *, timeout_s: float) -> None:
        """No save of the former ranks can complete any more, except those that are already durable
        everywhere: they are committed now, or not at all."""
        for generation_id, step in self._saves.drop_all(but=self._drains_save):
            self._decisions.submit(
                e.CheckpointFailed(generation_id=generation_id, step=step, reason=reason)
            )
        await self.settle(timeout_s=timeout_s)

    # --- periodic saves -------------------------------------------------------------------------

    async def settle(self, *, timeout_s: float) -> None:
        """Wait for saves that are being committed, until that is on record."""
        if self._commits:
            await asyncio.wait(self._commits, timeout=timeout_s)

    def _commit(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.start(work)
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit_periodic(self, written: Written) -> None:
        state, began_ms = self._decisions.state, loop_ms()
        given_up = threading.Event()
        try:
            async with asyncio.timeout(PERIODIC_COMMIT_S):
                published = await in_thread(
                    "commit",
                    lambda: self._verify_and_publish(written, state.attempt.world_size, given_up),
                )
        except FencedError as error:
            self._decisions.submit(i.ReportFenced(by_epoch=error.newest_epoch))
            return
        except (TimeoutError, DrainfsmError, OSError) as error:
            given_up.set()
            reason = str(error) or "the store did not answer in time"
            self._decisions.submit(
                e.CheckpointFailed(
                    generation_id=written.generation_id, step=written.step, reason=reason
                )
            )
            return
        sample = Sample(
            world_size=state.attempt.world_size,
            save_bytes=written.total_bytes,
            store=state.attempt.store,
            durable_ms=written.durable_ms,
            commit_ms=loop_ms() - began_ms,
        )
        await self._decisions.submit(
            e.CheckpointCommitted(
                generation_id=written.generation_id,
                manifest_digest=published.manifest_digest,
                slot=published.slot,
                step=written.step,
                sample=sample,
            )
        )

    def _verify_and_publish(
        self, written: Written, world_size: int, given_up: threading.Event
    ) -> Published:
        self._publisher.verify(written, world_size=world_size)
        return self._publisher.publish(written, world_size=world_size, given_up=given_up)
