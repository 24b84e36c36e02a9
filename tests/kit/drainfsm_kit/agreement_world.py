"""Runs the code by which all ranks come to hold at one step, as ``specs/models/Agreement.tla`` has
it: the coordinator's, one agent's for each rank, and the ranks' standing orders.

Between them are queues in which every message may wait for as long as the choice wants.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from drainfsm.core import inputs as i
from drainfsm.core.decider import decide
from drainfsm.core.effects import effects_of
from drainfsm.core.fold import evolve
from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.state import Phase, State
from drainfsm.errors import InputRejectedError
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.actions import Actions
from drainfsm.runtime.coordinator.decision_loop import DecisionLoop
from drainfsm.runtime.coordinator.node_reports import NodeReports
from drainfsm.runtime.coordinator.nodes import Nodes
from drainfsm.runtime.coordinator.saves import Saves
from drainfsm.runtime.rank.orders import Action, StandingOrders
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m
from drainfsm_kit.small_world import INSTANTS_UNIX_MS, initial_state

LAST_STEP = 2
ROUNDS = 2
RANKS = (1, 2)
"""As the model numbers them; in the code from 0 on."""

STEPS_MAX = 60
PHASES = {
    Phase.IDLE: "running",
    Phase.CANCELLED: "running",
    Phase.NOTICED: "holding",
    Phase.QUIESCING: "stopping",
}
Recorded = dict[str, Any]
Choice = Callable[[], Awaitable[None]]


class _At:
    """A clock that stands still, long before the deadline."""

    def time_ns(self) -> int:
        return INSTANTS_UNIX_MS[0] * 1_000_000

    def monotonic_ns(self) -> int:
        return 0


class _Decisions:
    """What ``DecisionLoop`` is without its journal: a decision, then its effects."""

    def __init__(self) -> None:
        self.state: State = initial_state(node_count=len(RANKS))
        self.actions: Actions

    def submit(self, given: i.AnyInput) -> None:
        try:
            events = decide(self.state, given, now_unix_ms=INSTANTS_UNIX_MS[0])
        except InputRejectedError:
            return
        for event in events:
            self.state = evolve(self.state, event)
        effects = [effect for event in events for effect in effects_of(event, self.state)]
        self.actions.run(effects, self.state)


class Rank:
    """A rank and its agent, with the queues between them and to the coordinator."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = 0
        self.inside = False
        self.order: tuple[str, int, int] = ("none", 0, 0)
        """As the model writes the newest one heard."""

        self.told: deque[n.ToNode] = deque()
        self.says: deque[n.FromNode] = deque()
        self.ordered: deque[m.ToRank] = deque()
        self.reports: deque[m.FromRank] = deque()
        self.orders = StandingOrders()
        self.send = self.ordered.append
        self.agent = LocalRanks(node=number - 1, node_count=len(RANKS), report=self._from_agent)
        self.agent.attach(
            m.Attach(
                rank=number - 1,
                pid=1,
                incarnation="0",
                world_size=len(RANKS),
                local_world_size=1,
            ),
            self.send,
        )

    def _from_agent(self, message: n.FromNode) -> None:
        if isinstance(message, n.NodeHeld | n.NodeQuiesced):
            self.says.append(message)


class Agreement:
    """One run. ``trace``: the model's actions that the code took, and what it was left with."""

    def __init__(self, chance: random.Random) -> None:
        self.trace: list[Recorded] = []
        self._chance = chance
        self._net: set[tuple[str, int, int, int]] = set()
        self._ranks = {number: Rank(number) for number in RANKS}
        self._decisions = _Decisions()
        config = RunConfig(
            job="job",
            store="store",
            state_dir=Path("state"),
            command=("true",),
            nnodes=len(RANKS),
            coordinator="127.0.0.1:1",
            token="0123456789abcdef",
        )
        nodes = Nodes(node_count=len(RANKS), heartbeat_s=1.0)
        for rank in self._ranks.values():
            nodes.join(rank.number - 1, rank.told.append)
        clock = Clock(_At())
        self._reports = NodeReports(node_count=len(RANKS))
        self._decisions.actions = Actions(
            config=config,
            clock=clock,
            nodes=nodes,
            reports=self._reports,
            saves=Saves(node_count=len(RANKS)),
            publisher=cast(Any, None),
            restore=None,
            decisions=cast(DecisionLoop, self._decisions),
            end=cast(Any, None),
            tasks=Tasks(self._bug),
        )

    def _bug(self, told: str) -> None:
        raise AssertionError(told)

    @property
    def _state(self) -> State:
        return self._decisions.state

    @property
    def phase(self) -> str:
        return PHASES.get(self._state.phase, "quiesced")

    async def run(self) -> None:
        """Until all ranks hold at the stop step, or the job is at its end."""
        for rank in self._ranks.values():
            rank.agent.attached(rank.number - 1)
            self._reports.starting(rank.number - 1)
        for _ in range(STEPS_MAX):
            choices = list(self._choices())
            if not choices or self.phase == "quiesced":
                return
            await self._chance.choice(choices)()

    def _choices(self) -> Iterator[Choice]:
        for rank in self._ranks.values():
            if rank.inside:
                if all(self._has_entered(peer, rank.done) for peer in self._ranks.values()):
                    yield partial(self._complete, rank)
            else:
                yield partial(self._boundary, rank)
            for queue, action in (
                (rank.told, self._agent_hears),
                (rank.ordered, self._rank_hears),
                (rank.reports, self._agent_is_told),
                (rank.says, self._coordinator_hears),
            ):
                if queue:
                    yield partial(action, rank)
        if self.phase == "running" and self._state.drain_count < ROUNDS:
            yield self._notice
        if self.phase == "holding" and self._chance.random() < 0.1:
            yield self._withdrawal

    def _has_entered(self, peer: Rank, done: int) -> bool:
        """The step behind ``done``, whose collective holds everybody."""
        return peer.done > done or (peer.done == done and peer.inside)

    # --- the ranks ------------------------------------------------------------------------------

    async def _complete(self, rank: Rank) -> None:
        rank.done, rank.inside = rank.done + 1, False
        self._took("Complete", rank)

    async def _boundary(self, rank: Rank) -> None:
        found = rank.orders.look(rank.done, lambda: None)
        if found is None:
            return
        if found[0] is Action.PASS and rank.done < LAST_STEP:
            rank.inside = True
            self._took("Enter", rank)
        elif found[0] is Action.QUIESCE:
            self._net.add(("quiesced", rank.order[1], rank.number, rank.done))
            rank.reports.append(m.Quiesced(step=rank.done))
            self._took("ReportQuiesced", rank)

    async def _rank_hears(self, rank: Rank) -> None:
        """What ``RankSession.on_order`` does: the flag is up, then the step is read."""
        order = rank.ordered.popleft()
        rank.orders.accept(order, lambda: None)
        match order:
            case m.Hold(number=number):
                rank.order = ("hold", number, 0)
                self._took("Hear", rank)
                self._net.add(("position", number, rank.number, rank.done))
                rank.reports.append(
                    m.Position(
                        number=number,
                        step=rank.done,
                        step_ms=0,
                        phase=m.TRAINING,
                        phase_left_ms=None,
                    )
                )
                self._took("ReportPosition", rank)
            case m.Release(stop_step=stop_step):
                rank.order = ("release", rank.order[1], stop_step)
                self._took("Hear", rank)
            case m.Resume():
                rank.order = ("resume", rank.order[1], 0)
                self._took("Hear", rank)

    # --- the agents -----------------------------------------------------------------------------

    async def _agent_hears(self, rank: Rank) -> None:
        """As ``Node.on_order`` hands it on."""
        match rank.told.popleft():
            case n.HoldNode(drain_id=drain_id):
                rank.agent.hold(drain_id)
            case n.ReleaseNode(stop_step=stop_step):
                rank.agent.release_to(stop_step)
            case n.ResumeNode():
                rank.agent.resume()
            case _:
                pass

    async def _agent_is_told(self, rank: Rank) -> None:
        rank.agent.on_message(rank.number - 1, rank.send, rank.reports.popleft())

    # --- the coordinator ------------------------------------------------------------------------

    async def _coordinator_hears(self, rank: Rank) -> None:
        before = self.phase
        match rank.says.popleft():
            case n.NodeHeld() as held:
                self._decisions.actions.held(rank.number - 1, held)
                if self.phase != before:
                    stop = self._state.stop
                    assert stop is not None
                    self._net.add(("release", self._state.drain_count, 0, stop.step))
                    self._took("StopStepAgreed")
            case n.NodeQuiesced(ranks=ranks, step=step):
                self._decisions.submit(
                    i.ReportQuiesced(node=rank.number - 1, ranks=ranks, step=step)
                )
                if self.phase != before:
                    self._took("RanksQuiesced")
            case _:
                pass

    async def _notice(self) -> None:
        notice = Notice(
            source="model",
            native_id=f"{self._state.drain_count}",
            cause=Cause.UNKNOWN,
            notice_class=NoticeClass.SOFT,
            deadline_unix_ms=INSTANTS_UNIX_MS[0] + 30_000,
            received_unix_ms=INSTANTS_UNIX_MS[0],
        )
        self._decisions.submit(i.ReceiveNotice(notice=notice, step_ms=0))
        await asyncio.sleep(0)  # the cordon's task: there is nobody to ask
        assert self.phase == "holding", self._state.phase
        self._net.add(("hold", self._state.drain_count, 0, 0))
        self._took("HoldRanks")

    async def _withdrawal(self) -> None:
        self._decisions.submit(
            i.WithdrawNotice(
                source="model", native_id=f"{self._state.drain_count - 1}", revision=1, reason=""
            )
        )
        assert self.phase == "running", self._state.phase
        self._net.add(("resume", self._state.drain_count, 0, 0))
        self._took("DrainCancelled")

    # --- the trace ------------------------------------------------------------------------------

    def _took(self, action: str, rank: Rank | None = None) -> None:
        ranks = self._ranks.values()
        stop = self._state.stop
        self.trace.append(
            {
                "action": action,
                "rank": 0 if rank is None else rank.number,
                "after": {
                    "done": [one.done for one in ranks],
                    "inside": [one.inside for one in ranks],
                    "order": [one.order for one in ranks],
                    "net": frozenset(self._net),
                    "round": self._state.drain_count,
                    "phase": self.phase,
                    "stop": 0 if stop is None else stop.step,
                },
            }
        )


def walk(seed: int) -> list[Recorded]:
    """The trace of one run."""

    async def run() -> list[Recorded]:
        world = Agreement(random.Random(seed))
        await world.run()
        return world.trace

    return asyncio.run(run())
