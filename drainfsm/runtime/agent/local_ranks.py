"""The ranks of one node: what each reported, gathered into one message a node. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from drainfsm.core.events import CheckpointRestored, HealthyStepReached, MissingRank, RestoreRefused
from drainfsm.core.inputs import NodePosition
from drainfsm.runtime.agent.local_saves import LocalSaves
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m
from drainfsm.runtime.wire.rank_messages import TRAINING

Send = Callable[[m.ToRank], None]


class LocalRank:
    """One attached rank as its agent sees it."""

    def __init__(self, rank: int, send: Send) -> None:
        self.rank = rank
        self.send = send
        self.position: m.Position | None = None
        """The newest one."""

        self.held = False
        """It answered the hold of this drain."""

        self.step_ms = 0
        """Longest recent step; 0: not known."""

        self.quiesced_step: int | None = None
        self.save_bytes: int | None = None
        self.first_step: int | None = None
        self.restored: CheckpointRestored | None = None
        self.finished = False
        """It closed its session."""

    def missing(self, node: int, *, phase: str = "") -> MissingRank:
        position = self.position
        step = None if position is None or position.step < 0 else position.step
        doing = "silent" if position is None else position.phase
        return MissingRank(rank=self.rank, node=node, last_step=step, phase=phase or doing)


class LocalRanks:
    """Takes messages of ranks and orders of the coordinator; passes the node's messages to
    ``report``."""

    def __init__(self, *, node: int, node_count: int, report: Callable[[n.FromNode], None]) -> None:
        self.node = node
        self._node_count = node_count
        self._report = report
        self._ranks: dict[int, LocalRank] = {}
        self._saves = LocalSaves(report)
        self._incarnation = ("", 0)
        self._world_size = 0
        self._expected_count: int | None = None
        """Of the node; None: no rank has attached yet."""

        self._sized: set[int] = set()
        """Ranks that have declared their size since it was last reported."""

        self._step_ms = 0
        """As it was reported."""

        self.attached_all = False
        """Every rank of the node has attached."""

        self._unclosed: set[int] = set()
        """Ranks that have ended without closing their session."""

        self._hold = False
        self._hold_number = 0
        self._drain_id = ""
        self._stop_step: int | None = None
        self.leaving = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._ranks))

    @property
    def expected_count(self) -> int | None:
        """Ranks of this node; None: none has attached yet."""
        return self._expected_count

    @property
    def unclosed(self) -> tuple[int, ...]:
        """Ranks that have ended without closing their session: they were not done."""
        return tuple(sorted(self._unclosed))

    @property
    def draining(self) -> bool:
        """They hold, save or leave: a drain needs them, or ends them in time."""
        return self._hold or self.leaving

    @property
    def _complete(self) -> bool:
        return self._expected_count is not None and len(self._ranks) == self._expected_count

    # --- a rank comes and goes ------------------------------------------------------------------

    def attach(self, attach: m.Attach, send: Send, *, restart: int = 0) -> int:
        """Takes the rank in. ``restart``: what the coordinator told the ranks that begin with it.

        Raises:
            ValueError: it does not match the ranks that are attached; the text goes to the rank.
        """
        world_size = attach.world_size or self._node_count
        rank = self.node if attach.rank is None else attach.rank
        local = attach.local_world_size or max(1, world_size // self._node_count)
        if self._node_count == 1:
            local = world_size  # whatever the launcher takes for a node: no other agent has ranks
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not in a world of {world_size}")
        if (attach.incarnation, restart) != self._incarnation or not self._ranks:
            self._incarnation = (attach.incarnation, restart)
            self._begin_incarnation(world_size=world_size, local=local)
        if (world_size, local) != (self._world_size, self._expected_count):
            raise ValueError(
                f"rank {rank} says {local} of {world_size} ranks are on this node, the others "
                f"{self._expected_count} of {self._world_size}"
            )
        if rank in self._ranks:
            reason = "two processes have one rank"
            if attach.rank is None:
                reason = (
                    "the launcher sets no RANK and WORLD_SIZE; give drainfsm.attach(rank=…, "
                    "world_size=…, local_world_size=…)"
                )
            raise ValueError(f"rank {rank} is attached already: {reason}")
        self._ranks[rank] = LocalRank(rank, send)
        return rank

    def _begin_incarnation(self, *, world_size: int, local: int) -> None:
        self._ranks.clear()
        self._unclosed.clear()
        self._sized.clear()
        self._saves.forget()
        self._world_size = world_size
        self._expected_count = local

    @property
    def world_size(self) -> int:
        return self._world_size

    def attached(self, rank: int) -> None:
        """The rank has its answer: send it what the others got."""
        local = self._ranks[rank]
        if self._complete:
            self.attached_all = True
            self._report_formed()
        if self.leaving:
            local.send(m.Leave(at_step=None))
        elif self._hold:
            local.send(m.Hold(number=self._hold_number))
            if self._stop_step is not None:
                local.send(m.Release(stop_step=self._stop_step))

    def gone(self, rank: int, send: Send, *, how: str) -> None:
        """The rank's process or connection ended. While a drain needs it, that is reported."""
        local = self._ranks.get(rank)
        if local is None or local.send is not send:
            return  # an earlier incarnation of it
        del self._ranks[rank]
        if not local.finished:
            self._unclosed.add(rank)
        if self._hold and not self.leaving and not local.finished:
            missing = (local.missing(self.node, phase="lost"),)
            self._report(n.NodeRanksLost(missing=missing, reason=f"rank {rank} {how}"))

    # --- what ranks say -------------------------------------------------------------------------

    def on_message(self, rank: int, send: Send, message: m.FromRank) -> None:
        local = self._ranks.get(rank)
        if local is None or local.send is not send:
            return
        match message:
            case m.Position():
                self._on_position(local, message)
            case m.StepTime(step_ms=step_ms):
                local.step_ms = step_ms
                self._check_step_times()
            case m.Quiesced(step=step):
                local.quiesced_step = step
                self._check_quiesced()
            case m.SizeDeclared(save_bytes=save_bytes):
                local.save_bytes = save_bytes
                self._sized.add(rank)
                self._check_sizes()
            case HealthyStepReached(step=step):
                local.first_step = step
                self._check_first_steps()
            case CheckpointRestored():
                local.restored = message
                self._check_restored()
            case RestoreRefused():
                self._report(message)
            case m.Detach():
                local.finished = True
            case m.Attach():
                pass  # the server takes the first and no other
            case _:
                self._saves.on_message(rank, message, self.ranks if self._complete else None)

    def _on_position(self, local: LocalRank, position: m.Position) -> None:
        local.position = position
        if not self._hold or local.held or position.number != self._hold_number:
            return
        local.held = True
        if self._complete and all(r.held for r in self._ranks.values()):
            self._report(n.NodeHeld(position=self._node_position(), drain_id=self._drain_id))

    def _node_position(self) -> NodePosition:
        found = {r.rank: r.position for r in self._ranks.values() if r.position is not None}
        busy = [
            (position.phase_left_ms or 0, rank)
            for rank, position in found.items()
            if position.phase != TRAINING
        ]
        busy_rank = max(busy)[1] if busy else None
        busiest = None if busy_rank is None else found[busy_rank]
        return NodePosition(
            node=self.node,
            ranks=self.ranks,
            min_step=min(p.step for p in found.values()),
            max_step=max(p.step for p in found.values()),
            step_ms=max(p.step_ms for p in found.values()),
            busy_rank=busy_rank,
            busy_phase="" if busiest is None else busiest.phase,
            busy_for_ms=None if busiest is None else busiest.phase_left_ms,
        )

    def _check_step_times(self) -> None:
        step_ms = max(rank.step_ms for rank in self._ranks.values())
        if step_ms != self._step_ms:
            self._step_ms = step_ms
            self._report(n.NodeStepTime(step_ms=step_ms))

    def _check_quiesced(self) -> None:
        steps = {r.quiesced_step for r in self._ranks.values()}
        if self._complete and len(steps) == 1 and (step := steps.pop()) is not None:
            self._report(n.NodeQuiesced(ranks=self.ranks, step=step))

    def _check_sizes(self) -> None:
        """One report a node and save: once every rank has declared its size (again)."""
        if self._complete and self._sized >= self._ranks.keys():
            self._sized.clear()
            self._report_formed()

    def _check_first_steps(self) -> None:
        steps = [r.first_step for r in self._ranks.values() if r.first_step is not None]
        if self._complete and len(steps) == len(self._ranks):
            self._report(HealthyStepReached(step=max(steps)))

    def _check_restored(self) -> None:
        done = [r.restored for r in self._ranks.values() if r.restored is not None]
        if not self._complete or len(done) != len(self._ranks):
            return
        self._report(max(done, key=lambda r: r.restore_ms))

    def _report_formed(self) -> None:
        sizes = [r.save_bytes for r in self._ranks.values() if r.save_bytes is not None]
        self._report(
            n.NodeFormed(
                ranks=self.ranks,
                world_size=self._world_size,
                save_bytes=sum(sizes) if len(sizes) == len(self._ranks) else 0,
                restart=self._incarnation[1],
            )
        )

    # --- what the coordinator says --------------------------------------------------------------

    def hold(self, drain_id: str = "") -> None:
        self._hold = True
        self._hold_number += 1
        self._drain_id = drain_id
        self._stop_step = None
        for local in self._ranks.values():
            local.held = False
            local.quiesced_step = None
        self._tell(m.Hold(number=self._hold_number))

    def release_to(self, stop_step: int) -> None:
        self._hold = True
        self._stop_step = stop_step
        self._tell(m.Release(stop_step=stop_step))

    def resume(self) -> None:
        self._hold = False
        self._stop_step = None
        self._tell(m.Resume())

    def leave(self, at_step: int | None) -> None:
        self.leaving = True
        self._tell(m.Leave(at_step=at_step))

    def save(self, order: m.Save) -> None:
        self._tell(order)

    def abort(self, generation_id: str) -> None:
        self._saves.drop(generation_id)
        self._tell(m.Abort(generation_id=generation_id))

    def ask(self) -> None:
        """Have the ranks that are late say where they are."""
        for local in self._late():
            local.send(m.Ask(number=self._hold_number))

    def missing(self) -> tuple[MissingRank, ...]:
        """Who has not done what was asked last."""
        if self._expected_count is None:
            return (MissingRank(rank=-1, node=self.node, last_step=None, phase="never attached"),)
        strangers = self._expected_count - len(self._ranks)
        never = MissingRank(rank=-1, node=self.node, last_step=None, phase="not attached")
        return (
            *(local.missing(self.node) for local in self._late()),
            *(never for _ in range(strangers)),
        )

    def _late(self) -> list[LocalRank]:
        stop_step = self._stop_step
        return [
            local
            for local in self._ranks.values()
            if (not local.held if stop_step is None else local.quiesced_step != stop_step)
        ]

    def _tell(self, message: m.ToRank) -> None:
        for local in self._ranks.values():
            local.send(message)
