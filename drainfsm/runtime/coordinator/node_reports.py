"""What the nodes reported, gathered into the inputs that the core wants. No I/O."""

from __future__ import annotations

import sys

from drainfsm.core import inputs as i
from drainfsm.core.events import (
    CheckpointRestored,
    HealthyStepReached,
    MissingRank,
    NodeExit,
    RestoreRefused,
)
from drainfsm.core.failures import Failure, cause_of
from drainfsm.core.state import Phase, State
from drainfsm.runtime.wire import node_messages as n

REFUSALS_MAX = 8
"""At most this many refused restores are logged in one attempt: ranks that each find their own file
damaged would fill the log, and so would a launcher that starts them over and over."""


class NodeReports:
    """One attempt's nodes. A method returns an input once all nodes have reported."""

    def __init__(self, *, node_count: int) -> None:
        self._nodes = frozenset(range(node_count))
        self._formed: dict[int, n.NodeFormed] = {}
        self._rank_count = 0
        self._save_bytes = 0
        self._starting: set[int] = set()
        """Nodes whose ranks have not all attached (again) yet, though some are about to."""

        self.whole = False
        """The ranks of all nodes are there, and belong together."""

        self._sized: set[int] = set()
        """Nodes that have given their size (again) since the world was last handed on."""

        self._held: dict[int, i.NodePosition] = {}
        self._late: dict[int, tuple[MissingRank, ...]] = {}
        self._step_times: dict[int, int] = {}
        self._first_steps: dict[int, int] = {}
        self._restored: dict[int, CheckpointRestored] = {}
        self._refusals: set[tuple[str, int, str, str]] = set()
        self._exits: dict[int, NodeExit] = {}
        self._failures: list[Failure] = []
        self.unclosed = False
        """Ranks have ended without closing their session: the job was not done."""

    def starting(self, node: int) -> None:
        self._starting.add(node)
        self.whole = False

    def formed(self, node: int, message: n.NodeFormed) -> i.FormWorld | None:
        """The world, once it is whole, and then each time that all nodes have given their sizes
        (again). The work of a report does not grow with the number of nodes."""
        before, attached = self._formed.get(node), node in self._starting
        self._starting.discard(node)
        self._formed[node] = message
        if before is not None:
            self._save_bytes -= before.save_bytes
            self._rank_count -= len(before.ranks)
        self._save_bytes += message.save_bytes
        self._rank_count += len(message.ranks)
        if before is not None and not attached and _same_ranks(before, message):
            self._sized.add(node)
            if not self.whole or len(self._sized) < len(self._nodes):
                return None
            self._sized.clear()
        else:
            self._restored.pop(node, None)
            self._sized.discard(node)
            self.whole = self._is_whole(message)
            if not self.whole:
                return None
        return i.FormWorld(
            world_size=message.world_size, save_bytes=self._save_bytes, restart=message.restart
        )

    def _is_whole(self, newest: n.NodeFormed) -> bool:
        """All ranks are there, and began together."""
        if self._starting or self._rank_count != newest.world_size:
            return False
        formed = self._formed.values()
        if any(one.restart != newest.restart for one in formed):
            return False
        ranks = sorted(rank for one in formed for rank in one.ranks)
        return ranks == list(range(newest.world_size))

    @property
    def not_formed(self) -> tuple[int, ...]:
        """Nodes whose ranks have not all attached, or are those from before a restart."""
        newest = max((one.restart for one in self._formed.values()), default=0)
        here = {node for node, one in self._formed.items() if one.restart == newest}
        return tuple(sorted((self._nodes - here) | self._starting))

    @property
    def attached(self) -> bool:
        """Some process of the job has called ``attach``."""
        return bool(self._formed or self._starting)

    @property
    def world_size(self) -> int:
        """As the ranks say it; 0: none has attached."""
        return max((one.world_size for one in self._formed.values()), default=0)

    def step_time(self, node: int, message: n.NodeStepTime) -> None:
        self._step_times[node] = message.step_ms

    @property
    def step_ms(self) -> int:
        """Longest recent step of any rank; 0: not known."""
        return max(self._step_times.values(), default=0)

    def begin_hold(self) -> None:
        self._held.clear()
        self._late.clear()

    def begin_release(self) -> None:
        self._late.clear()

    def held(self, node: int, message: n.NodeHeld) -> tuple[i.NodePosition, ...] | None:
        self._held[node] = message.position
        return tuple(self._held.values()) if len(self._held) == len(self._nodes) else None

    @property
    def highest_step(self) -> int | None:
        """The highest of all nodes that are held; None: none is."""
        return max((position.max_step for position in self._held.values()), default=None)

    def late(self, node: int, message: n.NodeLate) -> None:
        self._late[node] = message.missing

    def first_step(self, node: int, fact: HealthyStepReached) -> HealthyStepReached | None:
        self._first_steps[node] = fact.step
        if len(self._first_steps) < len(self._nodes):
            return None
        return HealthyStepReached(step=max(self._first_steps.values()))

    def restored(self, node: int, fact: CheckpointRestored) -> CheckpointRestored | None:
        """What the slowest rank said, once every node has."""
        self._restored[node] = fact
        if len(self._restored) < len(self._nodes):
            return None
        slowest = max(self._restored.values(), key=lambda r: r.restore_ms)
        self._restored.clear()
        return slowest

    def restore_refused(self, fact: RestoreRefused) -> RestoreRefused | None:
        """Only the first of ranks that report the same: they refuse together."""
        said = (fact.generation_id, fact.step, fact.error, fact.reason)
        if said in self._refusals or len(self._refusals) == REFUSALS_MAX:
            return None
        self._refusals.add(said)
        return fact

    # --- the end --------------------------------------------------------------------------------

    def exited(self, node: int, message: n.NodeExited) -> bool:
        """True: no node is left."""
        if node not in self._exits:
            self._exits[node] = message.exit
            self.unclosed = self.unclosed or bool(message.unclosed_ranks)
            if (code := message.exit.exit_code) > 0:
                at = sys.maxsize if message.failed_unix_ms is None else message.failed_unix_ms
                self._failures.append(Failure(at, code))
        return len(self._exits) == len(self._nodes)

    def has_exited(self, node: int) -> bool:
        return node in self._exits

    @property
    def first_failure(self) -> int:
        """Exit code of the node whose rank failed first, by the nodes' clocks; 0: none did."""
        cause = cause_of(self._failures)
        return 0 if cause is None else cause.exit_code

    def exits(self) -> tuple[NodeExit, ...]:
        """One for every node, silent ones included."""
        silent = (NodeExit(node=node, exit_code=-1, detail="no report") for node in self._nodes)
        return tuple(
            self._exits.get(one.node, one) for one in sorted(silent, key=lambda one: one.node)
        )

    # --- who has not done what was asked --------------------------------------------------------

    def missing(self, state: State) -> tuple[MissingRank, ...]:
        match state.phase:
            case Phase.NOTICED if state.current.hold is not None:
                waiting = self._nodes - self._held.keys()
            case Phase.QUIESCING if state.stop is not None:
                waiting = state.stop.waiting
            case _:
                waiting = frozenset()
        return tuple(rank for node in sorted(waiting) for rank in self.missing_on(node))

    def missing_on(self, node: int, *, phase: str = "silent") -> tuple[MissingRank, ...]:
        """The node's ranks, as far as they are known."""
        if phase == "silent" and (late := self._late.get(node)) is not None:
            return late
        formed = self._formed.get(node)
        if formed is None:
            return (MissingRank(rank=-1, node=node, last_step=None, phase="never attached"),)
        position = self._held.get(node)
        step = None if position is None or position.min_step < 0 else position.min_step
        return tuple(
            MissingRank(rank=rank, node=node, last_step=step, phase=phase) for rank in formed.ranks
        )


def _same_ranks(before: n.NodeFormed, now: n.NodeFormed) -> bool:
    """Only the size is new."""
    return (before.ranks, before.world_size, before.restart) == (
        now.ranks,
        now.world_size,
        now.restart,
    )
