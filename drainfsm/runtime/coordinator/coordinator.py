"""The coordinator of an attempt, in the agent of node 0: the pure core, and what it runs on.

Reports of the nodes become inputs of the core; what the core decides is journaled, and then done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.effects import effects_of
from drainfsm.core.events import MissingRank, NodeExit
from drainfsm.core.notice import SIGNAL_SOURCE, Notice
from drainfsm.core.state import Phase, State
from drainfsm.errors import DrainfsmError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.actions import Actions
from drainfsm.runtime.coordinator.attempt import ClaimedAttempt
from drainfsm.runtime.coordinator.attempt_end import (
    NO_PROGRESS_EXIT_CODE,
    AttemptEnd,
    AttemptOutcome,
)
from drainfsm.runtime.coordinator.decision_loop import Decided, DecisionLoop
from drainfsm.runtime.coordinator.narration import narrate
from drainfsm.runtime.coordinator.node_reports import NodeReports
from drainfsm.runtime.coordinator.nodes import Nodes, Send
from drainfsm.runtime.coordinator.progress import AttemptProgress
from drainfsm.runtime.coordinator.saves import Saves
from drainfsm.runtime.coordinator.starts import Starts
from drainfsm.runtime.coordinator.watchdogs import (
    fenced_by,
    watch_attachment,
    watch_fence,
    watch_silence,
    watch_window,
)
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import node_messages as n

LOST_NODE_EXIT_CODE = -1

FENCE_AT_EXIT_S = 2.0


class Coordinator:
    """One attempt's decider. Every method is called on the event loop."""

    def __init__(
        self,
        attempt: ClaimedAttempt,
        config: RunConfig,
        clock: Clock,
        *,
        warn: Callable[[str], None],
        interpret: Callable[[Notice], Awaitable[Notice | None]] | None = None,
        recorded: Callable[[State], None] = lambda state: None,
    ) -> None:
        """``interpret``: what a bare signal means, by a source that knows; it answers None where
        it has said it already. ``recorded``: a decision is on disk, and has led to this state."""
        self.attempt = attempt
        self._interpret = interpret
        self._recorded = recorded
        self._clock = clock
        self._warn = warn
        self._fence: asyncio.Future[bool] | None = None
        self._config = config
        self._nodes = Nodes(node_count=config.nnodes, heartbeat_s=config.heartbeat_s)
        self._reports = NodeReports(node_count=config.nnodes)
        self._tasks = Tasks(warn)
        self._decisions = DecisionLoop(
            attempt.journal,
            clock,
            act=self._act,
            missing=self._missing,
            warn=warn,
            keep=attempt.publisher.keep,
            sign=None if attempt.signer is None else attempt.signer.signed,
        )
        self._end = AttemptEnd(clock=clock, reports=self._reports, submit=self._decisions.submit)
        self._actions = Actions(
            config=config,
            clock=clock,
            nodes=self._nodes,
            reports=self._reports,
            saves=Saves(node_count=config.nnodes),
            publisher=attempt.publisher,
            restore=attempt.restore,
            decisions=self._decisions,
            end=self._end,
            tasks=self._tasks,
        )
        self._progress = AttemptProgress(
            attempt.publisher, attempt.restore, attempts_max=config.attempts_max
        )
        saves, layout = self._actions.saves, config.checkpoint.layout
        self._starts = Starts(attempt, self._decisions, saves, self._nodes, layout=layout)

    @property
    def state(self) -> State:
        return self._decisions.state

    async def run(self) -> AttemptOutcome:
        """Until the attempt is over and that is on record."""
        self._tasks.start(self._decisions.run())
        try:
            await self._decisions.submit(self.attempt.start)
            self._tasks.start(watch_silence(self._nodes, self._config, self._clock, self.node_gone))
            self._tasks.start(watch_attachment(self._reports, self._config, self._warn))
            self._tasks.start(watch_window(self._reports, lambda: self.state, self._warn))
            self._tasks.start(watch_fence(self.attempt.publisher, self._decisions.submit))
            self._tasks.start(self._progress.look())
            await self._end.wait()
            left_ms = self._end.time_left_ms(self.state)
            fenced = await self.ask_fence(timeout_s=left_ms / 2_000)
            outcome = self._end.outcome(self.state, fenced=fenced)
            held = (
                self._progress.held_because(self.state.attempt.requeue) if outcome.requeue else ""
            )
            if held:
                self._warn(f"the job is held: {held}")
                outcome = replace(outcome, exit_code=NO_PROGRESS_EXIT_CODE, requeue=False)
            now_unix_ms = self._clock.now_unix_ms()
            self._nodes.tell(
                n.JobLeft(
                    exit_code=outcome.exit_code,
                    requeue=outcome.requeue,
                    done_by_unix_ms=now_unix_ms + self._end.time_left_ms(self.state),
                    act_by_unix_ms=now_unix_ms + self._end.acts_left_ms(self.state),
                    left_for=outcome.left_for,
                    held=held,
                )
            )
        finally:
            await self._tasks.cancel()
        return outcome

    async def ask_fence(self, *, timeout_s: float) -> bool:
        """Whether a newer attempt has taken the job over: asked once, last of all. This process
        may have been frozen since it asked before."""
        if self.state.attempt.fenced_by is not None:
            return True
        if self._fence is None:
            self._fence = asyncio.ensure_future(self._fenced(min(timeout_s, FENCE_AT_EXIT_S)))
        return await asyncio.shield(self._fence)

    async def _fenced(self, timeout_s: float) -> bool:
        by_epoch = await fenced_by(self.attempt.publisher, timeout_s=timeout_s)
        if by_epoch is None:
            return False
        with contextlib.suppress(TimeoutError, DrainfsmError):
            async with asyncio.timeout(timeout_s):
                await self._decisions.submit(i.ReportFenced(by_epoch=by_epoch))
        return True

    # --- nodes come, speak and go ---------------------------------------------------------------

    def has_joined(self, node: int) -> bool:
        return node in self._nodes.joined or self._reports.has_exited(node)

    def join(self, node: int, send: Send) -> n.Welcome:
        self._nodes.join(node, send)
        attempt = self.attempt
        return n.Welcome(
            mac=b"",
            now_unix_ms=self._clock.now_unix_ms(),
            job_id=attempt.job_id,
            epoch=attempt.epoch,
            attempt_id=attempt.attempt_id,
            store_url=attempt.store_url,
            settings=self._config.checkpoint,
        )

    def brief(self, node: int) -> None:
        """Send a node that has just joined what the others got."""
        self._actions.brief(node)

    def node_gone(self, node: int, reason: str) -> None:
        """The node's connection ended, or it fell silent."""
        self._nodes.leave(node)
        if self._reports.has_exited(node):
            return
        missing = self._reports.missing_on(node, phase="lost")
        self._decisions.submit(i.ReportRanksLost(missing=missing, node_lost=True, reason=reason))
        lost = NodeExit(node=node, exit_code=LOST_NODE_EXIT_CODE, detail=reason)
        self._node_exited(node, n.NodeExited(exit=lost))

    def on_node(self, node: int, message: n.FromNode) -> None:
        self._nodes.heard(node)
        match message:
            case n.Heartbeat():
                pass
            case n.NodeStarting():
                self._reports.starting(node)
                self._tasks.start(self._starts.tell(node))
            case n.NodeFormed():
                self._submit(self._reports.formed(node, message))
                self._starts.formed(whole=self._reports.whole)
            case n.NodeHeld():
                self._actions.held(node, message)
            case n.NodeStepTime():
                self._reports.step_time(node, message)
            case n.NodeQuiesced(ranks=ranks, step=step):
                self._submit(i.ReportQuiesced(node=node, ranks=ranks, step=step))
            case n.NodeLate():
                self._reports.late(node, message)
            case e.HealthyStepReached():
                self._submit(self._reports.first_step(node, message))
            case e.CheckpointRestored():
                self._restored(node, message)
            case e.RestoreRefused():
                self._submit(self._reports.restore_refused(message))
            case n.NodeRanksLost(missing=missing, reason=reason):
                self._submit(i.ReportRanksLost(missing=missing, node_lost=False, reason=reason))
            case n.NodeExited():
                self._node_exited(node, message)
            case n.NodeCordonDone():
                self._actions.cordoned(node, message)
            case n.NodeSaveBegan() | n.NodeStaged() | n.NodeDurable() | n.NodeSaveFailed():
                self._actions.saves.on_node(node, message)
            case n.NodeNotice() | n.NodeWithdrawal():
                self._tasks.start(self._on_notice(node, message))
            case e.SourceUnknown() | e.SourceRecovered():
                self._submit(message)

    def _restored(self, node: int, fact: e.CheckpointRestored) -> None:
        self._actions.on_restored(fact)
        self.attempt.publisher.restored(fact.step)
        self._submit(self._reports.restored(node, fact))

    def _submit(self, given: i.AnyInput | None) -> None:
        if given is not None:
            self._decisions.submit(given)

    async def _on_notice(self, node: int, message: n.NodeNotice | n.NodeWithdrawal) -> None:
        given: i.AnyInput
        if isinstance(message, n.NodeNotice):
            notice = await self._interpreted(message.notice)
            if notice is None:
                detail = self._drain_line(self.state)
                answer = n.NoticeAnswer(ask=message.ask, error="", detail=detail)
                self._nodes.tell(answer, (node,))
                return
            if not notice.nodes:
                notice = replace(notice, heard_by=node)
            given = i.ReceiveNotice(notice=notice, step_ms=self._reports.step_ms)
            self._actions.heard_by(node, notice)
        else:
            given = i.WithdrawNotice(
                source=message.source,
                native_id=message.native_id,
                revision=message.revision,
                reason=message.reason,
            )
        try:
            state = await self._decisions.submit(given)
        except DrainfsmError as refused:
            answer = n.NoticeAnswer(ask=message.ask, error=str(refused), detail="")
        else:
            error, detail = _unknown(given, state), self._drain_line(state)
            answer = n.NoticeAnswer(ask=message.ask, error=error, detail=detail)
        self._nodes.tell(answer, (node,))

    async def _interpreted(self, notice: Notice) -> Notice | None:
        if notice.source != SIGNAL_SOURCE or self._interpret is None:
            return notice
        return await self._interpret(notice)

    def _node_exited(self, node: int, message: n.NodeExited) -> None:
        everybody = self._reports.exited(node, message)
        self._end.node_exited(self.state, everybody=everybody)
        if not everybody and message.exit.exit_code > 0 and not self.state.phase.draining:
            self._tasks.start(self._actions.end_the_others())

    # --- decisions ------------------------------------------------------------------------------

    def _act(self, decided: Decided) -> None:
        """The decision is on disk."""
        self._recorded(self.state)
        state = decided.state
        effects = [effect for event in decided.events for effect in effects_of(event, state)]
        self._actions.run(effects, state)
        self._end.decided(state)
        narrate(decided.events)

    def _missing(self, state: State) -> tuple[MissingRank, ...]:
        return self._reports.missing(state)

    def _drain_line(self, state: State) -> str:
        """One line for whoever gave the notice or took it back."""
        drain = state.drain
        if drain is not None and state.phase is Phase.CANCELLED:
            return f"drain {drain.drain_id} was called off, and the job goes on"
        if drain is None or not state.phase.active:
            return f"the job is {state.phase}: the notice changes nothing"
        left_s = (drain.deadline_unix_ms - self._clock.now_unix_ms()) / 1_000
        return f"drain {drain.drain_id} is {state.phase}, {left_s:.1f} s to its deadline"


def _unknown(given: i.AnyInput, state: State) -> str:
    """Why a notice that nobody gave cannot be taken back."""
    if not isinstance(given, i.WithdrawNotice):
        return ""
    identity = f"{given.source}/{given.native_id}"
    notices = state.drain.notices if state.drain is not None else {}
    if identity in notices:
        return ""
    known = ", ".join(sorted(notices)) or "none"
    return f"there is no notice {identity} to take back; known: {known}"
