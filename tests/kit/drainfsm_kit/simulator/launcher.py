"""The job's command on one simulated node, and the socket at which its ranks attach."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping

from drainfsm.runtime.processes.job import KILL_S_MAX, Job
from drainfsm_kit.simulator.process import Process
from drainfsm_kit.simulator.rank import Rank
from drainfsm_kit.simulator.sockets import IPC_US
from drainfsm_kit.simulator.timeline import US_PER_MS, Timeline

START_MS = 120
NOTICE_MS = 150
"""Until the launcher sees that one of its ranks died."""

FAILED_EXIT_CODE = 1
"""What a launcher makes of any failure, as torchrun does."""

KILLED_EXIT_CODE = 137


class SimulatedDoor:
    """The processes of a node's ranks, as its agent sees them."""

    def __init__(self, path: str, process: Process, timeline: Timeline) -> None:
        self.path = path
        self._ranks: dict[int, Rank] = {}
        self._watched: dict[int, Callable[[int | None], None]] = {}
        self._pids = itertools.count(2)
        self._process = process
        self._timeline = timeline

    def new_pid(self) -> int:
        return next(self._pids)

    def began(self, rank: Rank) -> None:
        self._ranks[rank.pid] = rank

    def watch(self, pid: int, ended: Callable[[int | None], None]) -> bool:
        """As ``watch_exit``."""
        if not self._ranks[pid].alive:
            return False
        self._watched[pid] = ended
        return True

    def ended(self, rank: Rank, exit_code: int) -> None:
        watching = self._watched.pop(rank.pid, None)
        if watching is not None:
            self._timeline.after(IPC_US, self._process.call_soon, watching, exit_code)
        self.on_end(rank, exit_code)

    on_end: Callable[[Rank, int], None] = staticmethod(lambda rank, exit_code: None)
    """The launcher is told as well."""

    @property
    def message_count(self) -> int:
        """Between the ranks and their agent, both ways."""
        sockets = [rank.socket for rank in self._ranks.values() if rank.socket is not None]
        back = [one.agent_end.message_count for one in sockets if one.agent_end is not None]
        return sum(one.message_count for one in sockets) + sum(back)


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
            self.door.began(rank)
            rank.start(
                {
                    "RANK": str(rank.number),
                    "WORLD_SIZE": str(rank.around.world.world_size),
                    "LOCAL_WORLD_SIZE": str(len(started)),
                    "TORCHELASTIC_RESTART_COUNT": str(self._count),
                }
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

    def adopt(self, pid: int) -> None:
        """Its ranks are known."""

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
