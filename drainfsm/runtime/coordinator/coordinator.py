"""The coordinator of an attempt, in the agent of node 0: the pure core, and what it runs on.

Reports of the nodes become inputs of the core; what the core decides is journaled, and then done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from drainfsm.core import inputs as i
from drainfsm.core.effects import effects_of
from drainfsm.core.events import MissingRank, NodeExit
from drainfsm.core.notice import SIGNAL_SOURCE, Notice
from drainfsm.core.state import Phase, State
from drainfsm.errors import DrainfsmError
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.actions import Actions
from drainfsm.runtime.coordinator.attempt import Attempt
from drainfsm.runtime.coordinator.decision_loop import Decided, DecisionLoop
from drainfsm.runtime.coordinator.ending import Ending, Outcome
from drainfsm.runtime.coordinator.gather import Gather
from drainfsm.runtime.coordinator.narration import narrate
from drainfsm.runtime.coordinator.nodes import Nodes, Send
from drainfsm.runtime.coordinator.saves import Saves
from drainfsm.runtime.coordinator.starts import Starts
from drainfsm.runtime.coordinator.watchdogs import watch_attachment, watch_fence, watch_silence
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import node_messages as n

LOST_NODE_EXIT_CODE = -1


class Follower(Protocol):
    """Who wants to know that the journal grew: the shipper."""

    def poke(self) -> None: ...


class Coordinator:
    """One attempt's decider. Every method is called on the event loop."""

    def __init__(
        self,
        attempt: Attempt,
        config: RunConfig,
        clock: Clock,
        *,
        warn: Callable[[str], None],
        follower: Follower | None = None,
    ) -> None:
        self.attempt = attempt
        self.follower = follower
        self.interpret: Callable[[Notice], Awaitable[Notice | None]] | None = None
        """What a bare signal means, by a source that knows; None: it is said already."""

        self._clock = clock
        self._warn = warn
        self._config = config
        self._nodes = Nodes(node_count=config.nnodes)
        self._gather = Gather(node_count=config.nnodes)
        self._tasks = Tasks(warn)
        self._ledger = DecisionLoop(
            attempt.journal,
            clock,
            act=self._act,
            missing=self._missing,
            warn=warn,
        )
        self._ending = Ending(clock=clock, gather=self._gather, submit=self._ledger.submit)
        self._effects = Actions(
            config=config,
            clock=clock,
            nodes=self._nodes,
            gather=self._gather,
            saves=Saves(node_count=config.nnodes),
            publisher=attempt.publisher,
            restore=attempt.restore,
            ledger=self._ledger,
            ending=self._ending,
            tasks=self._tasks,
        )

        self._starts = Starts(
            attempt,
            self._ledger,
            self._effects.saves,
            self._nodes,
            layout=config.checkpoint.layout,
        )

    @property
    def state(self) -> State:
        return self._ledger.state

    async def run(self) -> Outcome:
        """Until the attempt is over and that is on record."""
        self._tasks.start(self._ledger.run())
        try:
            await self._ledger.submit(self.attempt.start)
            self._tasks.start(watch_silence(self._nodes, self._config, self._clock, self.node_gone))
            self._tasks.start(watch_attachment(self._gather, self._config, self._warn))
            self._tasks.start(watch_fence(self.attempt.publisher, self._ledger.submit))
            await self._ending.wait()
            outcome = self._ending.outcome(self.state)
            done_by = self._clock.now_unix_ms() + self._ending.time_left_ms(self.state)
            self._nodes.tell(
                n.JobLeft(
                    exit_code=outcome.exit_code, requeue=outcome.requeue, done_by_unix_ms=done_by
                )
            )
        finally:
            await self._tasks.cancel()
        return outcome

    # --- nodes come, speak and go ---------------------------------------------------------------

    def has_joined(self, node: int) -> bool:
        return node in self._nodes.joined or self._gather.has_exited(node)

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
        """Bring a node that has just joined to what the others were told."""
        self._effects.brief(node)

    def node_gone(self, node: int, reason: str) -> None:
        """The node's connection ended, or it fell silent."""
        self._nodes.leave(node)
        if self._gather.has_exited(node):
            return
        missing = self._gather.missing_on(node, phase="lost")
        self._ledger.submit(i.ReportRanksLost(missing=missing, node_lost=True, reason=reason))
        lost = NodeExit(node=node, exit_code=LOST_NODE_EXIT_CODE, detail=reason)
        self._node_exited(node, n.NodeExited(exit=lost))

    def on_node(self, node: int, message: n.FromNode) -> None:
        self._nodes.heard(node)
        match message:
            case n.Heartbeat():
                pass
            case n.NodeStarting():
                self._gather.starting(node)
                self._tasks.start(self._starts.tell(node))
            case n.NodeFormed():
                self._submit(self._gather.formed(node, message))
                self._starts.formed(whole=self._gather.whole)
            case n.NodeHeld():
                self._effects.held(node, message)
            case n.NodeQuiesced(ranks=ranks, step=step):
                self._submit(i.ReportQuiesced(node=node, ranks=ranks, step=step))
            case n.NodeLate():
                self._gather.late(node, message)
            case n.NodeFirstStep(step=step):
                self._submit(self._gather.first_step(node, step))
            case n.NodeRestored():
                self._effects.refused |= {one.generation_id for one in message.refused}
                known = self._effects.restored
                if known is None or message.restore_ms >= known.restore_ms:
                    self._effects.restored = message
                self._submit(self._gather.restored(node, message))
            case n.NodeRestoreRefused():
                self._submit(self._gather.restore_refused(node, message))
            case n.NodeRanksLost(missing=missing, reason=reason):
                self._submit(i.ReportRanksLost(missing=missing, node_lost=False, reason=reason))
            case n.NodeExited():
                self._node_exited(node, message)
            case n.NodeCordonDone():
                self._effects.cordoned(node, message)
            case n.NodeSaveBegan() | n.NodeStaged() | n.NodeDurable() | n.NodeSaveFailed():
                self._effects.saves.on_node(node, message)
            case n.NodeNotice() | n.NodeWithdrawal():
                self._tasks.start(self._on_notice(node, message))
            case n.NodeSource(source=source, since_unix_ms=since, detail=detail):
                self._submit(
                    i.ReportSource(source=source, node=node, since_unix_ms=since, detail=detail)
                )

    def _submit(self, given: i.AnyInput | None) -> None:
        if given is not None:
            self._ledger.submit(given)

    async def _on_notice(self, node: int, message: n.NodeNotice | n.NodeWithdrawal) -> None:
        given: i.AnyInput
        if isinstance(message, n.NodeNotice):
            notice = await self._interpreted(message.notice)
            if notice is None:
                detail = self._standing(self.state)
                answer = n.NoticeAnswer(ask=message.ask, error="", detail=detail)
                self._nodes.tell(answer, (node,))
                return
            given = i.ReceiveNotice(notice=notice)
            self._effects.heard_by(node, notice)
        else:
            given = i.WithdrawNotice(
                source=message.source, native_id=message.native_id, reason=message.reason
            )
        try:
            state = await self._ledger.submit(given)
        except DrainfsmError as refused:
            answer = n.NoticeAnswer(ask=message.ask, error=str(refused), detail="")
        else:
            error, detail = _unknown(given, state), self._standing(state)
            answer = n.NoticeAnswer(ask=message.ask, error=error, detail=detail)
        self._nodes.tell(answer, (node,))

    async def _interpreted(self, notice: Notice) -> Notice | None:
        if notice.source != SIGNAL_SOURCE or self.interpret is None:
            return notice
        return await self.interpret(notice)

    def _node_exited(self, node: int, message: n.NodeExited) -> None:
        everybody = self._gather.exited(node, message)
        self._ending.node_exited(self.state, everybody=everybody)
        if not everybody and message.exit.exit_code > 0 and not self.state.phase.draining:
            self._tasks.start(self._effects.end_the_others())

    # --- decisions ------------------------------------------------------------------------------

    def _act(self, decided: Decided) -> None:
        """The decision is on disk."""
        if self.follower is not None:
            self.follower.poke()
        state = decided.state
        for event in decided.events:
            if (line := narrate(event)) is not None:
                self._warn(line)
        effects = [effect for event in decided.events for effect in effects_of(event, state)]
        self._effects.run(effects, state)
        self._ending.decided(state)

    def _missing(self, state: State) -> tuple[MissingRank, ...]:
        return self._gather.missing(state)

    def _standing(self, state: State) -> str:
        """One line for whoever gave the notice, or took it back."""
        if state.phase is Phase.CANCELLED:
            return f"drain {state.drain_id} was called off, and the job goes on"
        if not state.phase.active or state.deadline_unix_ms is None:
            return f"the job is {state.phase}: nothing follows from the notice"
        left_s = (state.deadline_unix_ms - self._clock.now_unix_ms()) / 1_000
        return f"drain {state.drain_id} is {state.phase}, {left_s:.1f} s to its deadline"


def _unknown(given: i.AnyInput, state: State) -> str:
    """What is wrong with taking back a notice that nobody gave."""
    if not isinstance(given, i.WithdrawNotice):
        return ""
    identity = f"{given.source}/{given.native_id}"
    if identity in state.notices:
        return ""
    known = ", ".join(sorted(state.notices)) or "none"
    return f"there is no notice {identity} to take back; known: {known}"
