"""The job's command on one simulated node, and the socket at which its ranks attach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from drainfsm.runtime.agent.local_ranks import LocalRanks, Send
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.agent.rank_server import RankEnds
from drainfsm.runtime.processes.exit_codes import describe_exit
from drainfsm.runtime.processes.job import KILL_S_MAX, Job
from drainfsm.runtime.wire import rank_messages as m
from drainfsm_kit.simulator.process import Process
from drainfsm_kit.simulator.rank import Rank
from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline

IPC_US = 120
"""One way between a rank and its agent."""

START_MS = 120
NOTICE_MS = 150
"""Until the launcher sees that one of its ranks died."""

FAILED_EXIT_CODE = 1
"""What a launcher makes of any failure, as torchrun does."""

KILLED_EXIT_CODE = 137


class SimulatedDoor:
    """``RankServer`` without a socket: bytes cannot be lost on it, only be late."""

    def __init__(
        self,
        ranks: LocalRanks,
        ends: RankEnds,
        start: LocalStart,
        process: Process,
        timeline: Timeline,
    ) -> None:
        self.message_count = 0
        self._ranks = ranks
        self._ends = ends
        self._start = start
        self._process = process
        self._timeline = timeline
        self._sends: dict[Rank, tuple[int, Send, str]] = {}
        self._attaching: set[asyncio.Task[None]] = set()

    def attach(self, rank: Rank, attach: m.Attach) -> None:
        self._to_agent(self._begin, rank, attach)

    def say(self, rank: Rank, message: m.FromRank) -> None:
        self._to_agent(self._on_message, rank, message)

    def ended(self, rank: Rank, exit_code: int) -> None:
        self._to_agent(self._on_end, rank, exit_code)
        self.on_end(rank, exit_code)

    on_end: Callable[[Rank, int], None] = staticmethod(lambda rank, exit_code: None)
    """The launcher is told as well."""

    def _to_agent(self, call: Callable[..., None], *args: object) -> None:
        self.message_count += 1
        self._timeline.after(IPC_US, self._process.call_soon, call, *args)

    def _begin(self, rank: Rank, attach: m.Attach) -> None:
        task = asyncio.get_running_loop().create_task(self._attach(rank, attach))
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)

    async def _attach(self, rank: Rank, attach: m.Attach) -> None:
        def send(message: m.ToRank) -> None:
            self.message_count += 1
            self._timeline.after(IPC_US, rank.on_order, message)

        start = await self._start.ask(attach)
        if not rank.alive:
            return
        try:
            number = self._ranks.attach(attach, send, restart=start.restart)
        except ValueError as error:
            send(m.Refused(reason=str(error)))
            return
        self._sends[rank] = (number, send, attach.incarnation)
        self._ends.rank_began(number, attach.incarnation, 0)
        send(self._start.attached(start, rank=number, world_size=self._ranks.world_size))
        self._ranks.attached(number)

    def _on_message(self, rank: Rank, message: m.FromRank) -> None:
        if rank in self._sends:
            number, send, _ = self._sends[rank]
            self._ranks.on_message(number, send, message)

    def _on_end(self, rank: Rank, exit_code: int) -> None:
        if rank in self._sends:
            number, send, incarnation = self._sends[rank]
            self._ends.rank_ended(number, incarnation, exit_code)
            self._ranks.gone(number, send, how=describe_exit(exit_code))


Spawn = Callable[[SimulatedDoor, str], list[Rank]]
"""The ranks of an incarnation, not yet attached."""


class SimulatedJob(Job):
    """A launcher like torchrun: one rank fails, and all of the node end."""

    def __init__(self, door: SimulatedDoor, timeline: Timeline, spawn: Spawn) -> None:
        super().__init__(("simulated",), signals=())
        self.ranks: list[Rank] = []
        self.door = door
        self._timeline = timeline
        self._spawn = spawn
        self._code: int | None = None
        self._over = asyncio.Event()
        self._failing = False
        self._restarting = False
        self._count = 0
        self._process = asyncio.get_running_loop()
        door.on_end = self._rank_ended

    def start(self, variables: Mapping[str, str]) -> None:
        self._timeline.after(START_MS * US_PER_MS, self._start_ranks, "incarnation-0")

    def _start_ranks(self, incarnation: str) -> None:
        if self._code is not None:
            return
        self._restarting = False
        started = self._spawn(self.door, incarnation)
        self.ranks += started
        for rank in started:
            self.door.attach(
                rank,
                m.Attach(
                    rank=rank.number,
                    world_size=rank.around.world.world_size,
                    local_world_size=len(started),
                    pid=rank.number + 1,
                    incarnation=str(self._count),
                ),
            )

    def restart(self, incarnation: str, *, counted: bool) -> bool:
        """The launcher ends its ranks and starts them again. ``counted``: so it tells them, since
        it was one of them that failed, and none elsewhere."""
        if self._code is not None or not self.ranks:
            return False
        self._restarting = True
        self._count += counted
        delay_ms = 2 * START_MS if counted else 3 * START_MS
        for rank in self.living():
            rank.kill()
        self._timeline.after(delay_ms * US_PER_MS, self._start_ranks, incarnation)
        return True

    def living(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.alive]

    def _rank_ended(self, rank: Rank, exit_code: int) -> None:
        if self._restarting or self._code is not None:
            return
        if not self.living():
            self._end(FAILED_EXIT_CODE if self._failing or exit_code else 0)
        elif exit_code and not self._failing:
            self._failing = True
            self._timeline.after(NOTICE_MS * US_PER_MS, self._kill_ranks)

    def _kill_ranks(self) -> None:
        for rank in self.living():
            rank.kill()

    def _end(self, exit_code: int) -> None:
        if self._code is None:
            self._code = exit_code
            self._process.call_soon(self._over.set)

    # --- what the node asks ---------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        return 1

    @property
    def exit_code(self) -> int | None:
        return self._code

    async def wait(self) -> None:
        await self._over.wait()

    async def wait_for_the_rest(self, *, timeout_s: float) -> bool:
        if self.living():
            await asyncio.sleep(timeout_s)
        return not self.living()

    async def kill(self, *, timeout_s: float = KILL_S_MAX) -> bool:
        self.kill_now()
        if self.living():
            await asyncio.sleep(timeout_s)
        return not self.living()

    def kill_now(self) -> None:
        self._kill_ranks()
        self._end(KILLED_EXIT_CODE)

    def reap(self) -> None: ...

    # --- what the world does --------------------------------------------------------------------

    def agent_ended(self) -> None:
        """The launcher dies with its agent (PR_SET_PDEATHSIG), the ranks see their agent gone."""
        self._code = KILLED_EXIT_CODE
        for rank in self.living():
            rank.agent_gone()

    def power_off(self) -> None:
        self._code = KILLED_EXIT_CODE
        for rank in self.living():
            rank.vanish()
