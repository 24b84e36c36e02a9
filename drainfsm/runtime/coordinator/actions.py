"""Does what a recorded fact asks for. Nothing here decides; everything here has a time limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial

from drainfsm.core import effects as fx
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.deadline import exit_plan_of
from drainfsm.core.events import CheckpointRestored
from drainfsm.core.notice import Cause, Notice
from drainfsm.core.orders import SaveOrder
from drainfsm.core.requeue import RequeueRecord
from drainfsm.core.state import Phase, State
from drainfsm.core.words import CordonOutcome
from drainfsm.errors import DrainfsmError, FencedError
from drainfsm.runtime.clock import Clock, loop_ms
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt_end import LAST_SAVE_S, AttemptEnd, ended_by_itself
from drainfsm.runtime.coordinator.decision_loop import DecisionLoop
from drainfsm.runtime.coordinator.node_reports import NodeReports
from drainfsm.runtime.coordinator.nodes import Nodes
from drainfsm.runtime.coordinator.publisher import Publisher
from drainfsm.runtime.coordinator.requeue import requeue_record
from drainfsm.runtime.coordinator.save_committer import SaveCommitter
from drainfsm.runtime.coordinator.saves import Saves
from drainfsm.runtime.threads import Tasks, in_thread
from drainfsm.runtime.wire import node_messages as n

CORDON_MS = 1_000
"""The cordon comes before ranks are asked to stop, and may cost the drain no more than this."""

POSITIONS_S = 1.0
"""To agree on a common last step where nothing is saved. Without agreement each rank leaves at its
next boundary, and one that then waits for the others is killed by its agent."""

JOB_END_GRACE_S = 30.0
"""After one node's part of the job failed: for the others to notice by themselves."""

REQUEUE_S = 5.0
SETTLE_S = 2.0
"""For a periodic save that is being committed when the job leaves: it makes the better restart."""


class Actions:
    def __init__(
        self,
        *,
        config: RunConfig,
        clock: Clock,
        nodes: Nodes,
        reports: NodeReports,
        saves: Saves,
        publisher: Publisher,
        restore: RequeueRecord | None,
        decisions: DecisionLoop,
        end: AttemptEnd,
        tasks: Tasks,
    ) -> None:
        self.saves = SaveCommitter(saves, publisher, decisions, nodes, tasks, clock)
        self._restored: CheckpointRestored | None = None
        """As the slowest node reported it."""

        self._refused: set[str] = set()
        """Generations that ranks of this attempt found damaged."""

        self._config = config
        self._clock = clock
        self._nodes = nodes
        self._reports = reports
        self._publisher = publisher
        self._restore = restore
        self._decisions = decisions
        self._end = end
        self._tasks = tasks
        self._heard: set[int] = set()
        self._cordons: dict[int, n.NodeCordonDone] = {}
        self._cordoning = asyncio.Event()
        self._cordoned_drain = ""
        self._all_held = asyncio.Event()
        self._held_at_ms: int | None = None
        self._held_drain = ""
        self._backstop = n.SetBackstop(kill_by_unix_ms=None, exit_by_unix_ms=None)
        self._leave: n.LeaveNode | None = None
        self._requeue_asked = False

    def on_restored(self, message: CheckpointRestored) -> None:
        self._refused |= {one.generation_id for one in message.refused}
        if self._restored is None or message.restore_ms >= self._restored.restore_ms:
            self._restored = message

    def run(self, effects: Iterable[fx.AnyEffect], state: State) -> None:
        """The effects of one decision."""
        self._tell_backstop(state)
        cause: Cause | None = None
        for effect in effects:
            match effect:
                case fx.RecordRequeue():
                    cause = effect.cause  # of several, the last: the job ended by itself
                case _:
                    self._run(effect, state)
        if cause is not None and not self._requeue_asked:
            self._requeue_asked = True
            self._tasks.start(self._record_requeue(cause))

    def _run(self, effect: fx.AnyEffect, state: State) -> None:
        match effect:
            case fx.CordonNodes(nodes=names):
                drain_id = state.current.drain_id
                if self._cordoned_drain != drain_id:
                    self._cordoned_drain = drain_id
                    self._tasks.start(self._cordon(names, drain_id))
            case fx.HoldRanks(answer_by_unix_ms=answer_by):
                self._hold(answer_by, state.current.drain_id)
            case fx.ReleaseTo(stop_step=stop_step, quiesce_by_unix_ms=quiesce_by):
                self._reports.begin_release()
                self._nodes.tell(n.ReleaseNode(stop_step=stop_step, quiesce_by_unix_ms=quiesce_by))
            case fx.ResumeTraining():
                self._held_at_ms = None
                self._heard.clear()
                self._nodes.tell(n.ResumeNode())
            case fx.StartSave(generation_id=generation_id, step=step, durable_by_unix_ms=by):
                self.saves.begin(generation_id, step=step)
                order = SaveOrder(generation_id=generation_id, step=step, durable_by_unix_ms=by)
                self._nodes.tell(n.SaveNode(order=order))
            case fx.AbortSave(generation_id=generation_id):
                self.saves.abort(generation_id)
            case fx.VerifyEntries(generation_id=generation_id):
                self._tasks.start(self.saves.verify(generation_id, state))
            case fx.PublishManifest(generation_id=generation_id):
                self.saves.publish(generation_id, state)
            case fx.LeaveRanks(kill_by_unix_ms=kill_by):
                self._tasks.start(self._leave_ranks(state, kill_by))
            case fx.RecordRequeue():
                raise AssertionError("handled by run")

    def brief(self, node: int) -> None:
        """A node joined late: send it what the others got."""
        state = self._decisions.state
        self._nodes.tell(self._backstop, (node,))
        if self._leave is not None:
            leave = n.LeaveNode(at_step=None, kill_by_unix_ms=self._leave.kill_by_unix_ms)
            self._nodes.tell(leave, (node,))
        elif state.phase is Phase.NOTICED and (hold := state.current.hold) is not None:
            order = n.HoldNode(
                answer_by_unix_ms=hold.quiesce_by_unix_ms, drain_id=state.current.drain_id
            )
            self._nodes.tell(order, (node,))

    # --- deadlines ------------------------------------------------------------------------------

    def _tell_backstop(self, state: State) -> None:
        """The agents keep the deadline even if they never hear from here again."""
        if state.phase.active:
            plan = exit_plan_of(state)
            backstop = n.SetBackstop(
                kill_by_unix_ms=plan.kill_by_unix_ms,
                exit_by_unix_ms=plan.exit_by_unix_ms,
                scheduled=state.phase is Phase.SCHEDULED,
            )
        elif state.phase is Phase.CANCELLED:
            backstop = n.SetBackstop(kill_by_unix_ms=None, exit_by_unix_ms=None)
        else:
            return
        if backstop != self._backstop:
            self._backstop = backstop
            self._nodes.tell(backstop)

    # --- cordon ---------------------------------------------------------------------------------

    def heard_by(self, node: int, notice: Notice) -> None:
        """Where no name is given, the node that heard the notice is cordoned."""
        if not notice.nodes:
            self._heard.add(node)

    def cordoned(self, node: int, message: n.NodeCordonDone) -> None:
        if message.drain_id == self._cordoned_drain:  # not of one that was called off
            self._cordons[node] = message
            self._cordoning.set()

    async def _cordon(self, names: tuple[str, ...], drain_id: str) -> None:
        if not self._config.cordon:
            self._decisions.submit(
                i.ReportCordon(
                    outcome=CordonOutcome.NOT_CONFIGURED,
                    duration_ms=0,
                    drain_id=drain_id,
                    attached=self._reports.attached,
                )
            )
            return
        began_ms = loop_ms()
        joined = set(self._nodes.joined)
        asked = {self._config.node_rank} if names else (self._heard & joined) or joined
        self._cordons.clear()
        order = n.CordonNode(nodes=names, timeout_ms=CORDON_MS, drain_id=drain_id)
        self._nodes.tell(order, asked)
        try:
            async with asyncio.timeout(CORDON_MS / 1_000):
                while not self._cordons.keys() >= asked:
                    self._cordoning.clear()
                    await self._cordoning.wait()
        except TimeoutError:
            pass
        silent = asked - self._cordons.keys()
        answers = [self._cordons[node] for node in sorted(asked - silent)]
        failed = [answer for answer in answers if answer.outcome != CordonOutcome.SUCCESS]
        outcome = failed[0].outcome if failed else CordonOutcome.SUCCESS
        if silent:
            outcome = CordonOutcome.TIMED_OUT
        details = [answer.detail for answer in failed or answers if answer.detail]
        self._decisions.submit(
            i.ReportCordon(
                outcome=outcome,
                duration_ms=loop_ms() - began_ms,
                detail="; ".join(details)[:500],
                drain_id=drain_id,
                attached=self._reports.attached,
            )
        )

    # --- holding and leaving --------------------------------------------------------------------

    def _hold(self, answer_by_unix_ms: int, drain_id: str) -> int:
        """Returns when that was, on the loop's clock."""
        self._reports.begin_hold()
        self._all_held.clear()
        self._held_at_ms = held_at_ms = loop_ms()
        self._held_drain = drain_id
        self._nodes.tell(n.HoldNode(answer_by_unix_ms=answer_by_unix_ms, drain_id=drain_id))
        return held_at_ms

    def held(self, node: int, message: n.NodeHeld) -> None:
        if message.drain_id != self._held_drain:
            return  # it answers the hold of a drain that was called off
        positions = self._reports.held(node, message)
        if positions is None:
            return
        self._all_held.set()
        if self._decisions.state.phase is Phase.NOTICED:
            self._decisions.submit(
                i.ReportPositions(
                    positions=positions,
                    accumulation=self._config.accumulation,
                    drain_id=message.drain_id,
                )
            )

    async def _leave_ranks(self, state: State, kill_by_unix_ms: int | None) -> None:
        at_step = None
        if kill_by_unix_ms is None:
            kill_by_unix_ms = self._clock.now_unix_ms()
        elif state.stop is not None:
            at_step = state.stop.step
        elif self._reports.world_size:
            at_step = await self._common_step(kill_by_unix_ms, state.current.drain_id)
        leave = n.LeaveNode(at_step=at_step, kill_by_unix_ms=kill_by_unix_ms)
        self._leave = leave
        self._nodes.tell(leave)
        self._end.told_to_leave(state, kill_by_unix_ms=kill_by_unix_ms)

    async def _common_step(self, kill_by_unix_ms: int, drain_id: str) -> int | None:
        """No stop step was agreed: the ranks leave together nevertheless, if they can."""
        held_at_ms = self._held_at_ms
        if held_at_ms is None:
            held_at_ms = self._hold(kill_by_unix_ms, drain_id)
        waited_s = (loop_ms() - held_at_ms) / 1_000
        wait_s = min(POSITIONS_S - waited_s, self._clock.seconds_until(kill_by_unix_ms) / 4)
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._all_held.wait()
        except TimeoutError:
            pass
        highest = self._reports.highest_step
        return None if highest is None else highest + 1

    async def end_the_others(self) -> None:
        """One node's part of the job failed; the rest cannot go on without it for long."""
        await asyncio.sleep(JOB_END_GRACE_S)
        if not self._decisions.state.phase.draining:
            self._nodes.tell(n.LeaveNode(at_step=None, kill_by_unix_ms=self._clock.now_unix_ms()))

    # --- requeue --------------------------------------------------------------------------------

    def _settle_s(self, longest_s: float = SETTLE_S) -> float:
        state = self._decisions.state
        if not state.phase.active and state.phase is not Phase.EXITED:
            return longest_s
        left_s = self._clock.seconds_until(state.current.usable_deadline_unix_ms)
        return min(longest_s, left_s / 4)

    async def _record_requeue(self, cause: Cause) -> None:
        began_ms, longest_s = loop_ms(), SETTLE_S
        if ended_by_itself(self._decisions.state):
            longest_s = LAST_SAVE_S
        await self.saves.settle(timeout_s=self._settle_s(longest_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settle_s()):
                await in_thread("close", self._publisher.close)
        await self.saves.settle(timeout_s=self._settle_s())
        state = self._decisions.state
        record = requeue_record(
            state.attempt,
            cause=Cause(cause),
            config=self._config,
            before=self._restore,
            restored=self._restored,
            now_unix_ms=self._clock.now_unix_ms(),
        )
        error = ""
        if state.attempt.fenced_by is not None:
            error = f"epoch {state.attempt.fenced_by} has claimed the job"
        else:
            left_s = self._settle_s(longest_s) - (loop_ms() - began_ms) / 1_000
            try:
                async with asyncio.timeout(max(REQUEUE_S, left_s)):
                    record = await in_thread(
                        "requeue",
                        partial(self._publisher.record_requeue, record, refused=self._refused),
                    )
            except TimeoutError:
                error = "the store did not answer in time"
            except FencedError as fenced:
                self._decisions.submit(i.ReportFenced(by_epoch=fenced.newest_epoch))
                error = str(fenced)
            except (DrainfsmError, OSError) as failure:
                error = str(failure)
        self._decisions.submit(e.RequeueRecorded(record=record, error=error))
