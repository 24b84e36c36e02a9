"""One node of a running attempt: its ranks, its command, and what the coordinator orders."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

from msgspec.structs import replace

from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.events import NodeExit
from drainfsm.core.exit_plan import closing_ms, kill_to_exit_ms
from drainfsm.runtime.agent.adapters import RunningAdapters
from drainfsm.runtime.agent.clock_offset import Offset
from drainfsm.runtime.agent.coordinator_link import CoordinatorLink
from drainfsm.runtime.agent.local_ranks import LocalRanks
from drainfsm.runtime.agent.local_start import LocalStart
from drainfsm.runtime.agent.node_machine import NodeMachine
from drainfsm.runtime.agent.notices import Notices
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.processes.exit_codes import SIGNALLED, describe_exit
from drainfsm.runtime.processes.job_code import JobCode
from drainfsm.runtime.processes.oom import OutOfMemory
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import node_messages as n
from drainfsm.runtime.wire import rank_messages as m

LATE_LEAD_MS_MAX = 150
"""This long before a wait is over, late ranks are asked for their step, twice over."""

KILLED = SIGNALLED + signal.SIGKILL
NAMED_MAX = 8
REAP_S = 5.0
LAUNCHER_S = 1.0
"""For a launcher whose ranks have left: the torchrun of a node that is not the store's can spend
many seconds in its exit barrier, asking a store that has gone."""

END_S = 0.5
"""The last wait for processes that were killed: usually they are long gone. At most half of what
the backstop leaves between the end of the agent and the deadline."""


OVERDUE_EXIT_MS = 2_000
FAILED_TOLD_MAX = 8
"""Ranks whose failure is reported: the others fail because of it."""

OWN_EXIT_MS_MAX = 2_000
"""From killing what is left, where nobody has answered a notice, to the end of the agent."""


class Node:
    """Everything on this node between joining and leaving."""

    def __init__(
        self,
        config: RunConfig,
        clock: Clock,
        link: CoordinatorLink,
        adapters: RunningAdapters,
        notices: Notices,
        tasks: Tasks,
        warn: Callable[[str], None],
        offset: Offset,
        machine: NodeMachine,
    ) -> None:
        self._config = config
        self._clock = clock
        self._link = link
        self._adapters = adapters
        self._notices = notices
        self._tasks = tasks
        self._warn = warn
        self._machine = machine
        self._code = JobCode()
        self._ranks = LocalRanks(node=config.node_rank, node_count=config.nnodes, report=link.send)
        self._start = LocalStart(link.welcome, self._ranks, link.send)
        self._ranks_attach = machine.ranks_attach(
            self._ranks, start=self._start, call=notices.call, ends=self
        )
        self.job = machine.job()
        self._offset = offset
        self._limits = machine.limits(kill=self._overran, leave=self._out_of_time)
        self._late: asyncio.Task[None] | None = None
        self._killed: tuple[int, ...] = ()
        self._killing = False
        self._launcher: asyncio.TimerHandle | None = None
        self._launcher_ended = False
        self._why_killed = ""
        self._oom = OutOfMemory()
        self._out_of_memory = ""
        """Why the kernel killed the first rank, where it was for memory."""

        self._rank_ended = asyncio.Event()
        self._failed_count = 0
        self._notice_signals = {signal.Signals[name] for name in config.signals}
        self._left: asyncio.Future[n.JobLeft] = asyncio.get_running_loop().create_future()

    # --- life -----------------------------------------------------------------------------------

    def listening(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Ranks can attach, and ``drainfsm notify`` finds the agent."""
        return self._ranks_attach

    def start(self) -> None:
        """Raises: ConfigError: the command cannot be started."""
        if not self._left.done():
            self.job.start(self._machine.variables(epoch=self._link.welcome.epoch))
            self._tasks.start(self._follow_job())
            self._tasks.start(self._reap())

    async def left(self) -> n.JobLeft:
        """Until the whole job has left, or this node must."""
        return await asyncio.shield(self._left)

    async def end(self) -> None:
        """No process of the job outlives its agent."""
        self._limits.close()
        timeout_s = closing_ms(self._config.allowances.exit_margin_ms) / 1_000
        await self.job.kill(timeout_s=min(END_S, timeout_s))

    def lose(self, reason: str) -> None:
        """The attempt is lost: kill the ranks and leave, to be started again."""
        if not self._left.done():
            self._warn(reason)
        self._leave_alone(EX_TEMPFAIL)

    def _out_of_time(self) -> None:
        self._leave_alone(EX_TEMPFAIL)

    def _leave_alone(self, exit_code: int) -> None:
        """Without the coordinator."""
        self.job.kill_now()
        if not self._left.done():
            self._left.set_result(
                n.JobLeft(
                    exit_code=exit_code,
                    requeue=True,
                    done_by_unix_ms=self._clock.now_unix_ms(),
                )
            )

    # --- the command ----------------------------------------------------------------------------

    async def _follow_job(self) -> None:
        await self.job.wait()
        self._check_memory("the command", self.job.exit_code)
        if await self._rest_has_left():
            detail = self._why_killed
        else:
            detail = self._why_killed or self._outlived()
            if not await self.job.kill():
                detail = f"{detail}; a process could not be killed"
        if self._out_of_memory:
            detail = f"{self._out_of_memory}; {detail}" if detail else self._out_of_memory
        code = self._code.of(self.job.exit_code or 0)
        if self._launcher_ended:
            code = self._code.of_ranks
        self._link.send(
            n.NodeExited(
                exit=NodeExit(
                    node=self._config.node_rank,
                    exit_code=code,
                    killed_ranks=self._killed,
                    detail=detail,
                ),
                failed_unix_ms=self._code.failed_unix_ms,
                unclosed_ranks=self._ranks.unclosed,
            )
        )

    async def _rest_has_left(self) -> bool:
        """What the command left running has ended by itself. False: something has not.

        Where a signal that was meant for the agent has ended the command, or a drain is on by now,
        the ranks that live are the job, and are not leftovers.
        """
        timeout_s = self._config.leftover_s
        if (self.job.exit_code or 0) - SIGNALLED in self._notice_signals:
            await self._follow_ranks()
        if await self.job.wait_for_the_rest(timeout_s=timeout_s):
            return True
        if not self._ranks.draining or not self._code.live:
            return False
        await self._follow_ranks()
        return await self.job.wait_for_the_rest(timeout_s=timeout_s)

    async def _follow_ranks(self) -> None:
        if not self._code.live or self._killing:
            return
        self._warn(f"the command {describe_exit(self.job.exit_code)}; its ranks go on without it")
        self._launcher_ended = True
        while self._code.live:
            self._rank_ended.clear()
            await self._rank_ended.wait()

    def _check_memory(self, who: str, exit_code: int | None) -> None:
        if exit_code == KILLED and not self._killing and (why := self._oom.explanation()):
            self._warn(f"{who} was ended by SIGKILL: {why}")
            self._out_of_memory = self._out_of_memory or f"{who}: {why}"

    def _outlived(self) -> str:
        left = ", ".join(str(rank) for rank in self._ranks.ranks) or "none attached"
        names = ", ".join(self.job.names()[:NAMED_MAX])
        self._warn(
            f"{names} outlived the command by {self._config.leftover_s:g} s, and is killed; give "
            "--leftover if it needs longer"
        )
        return f"processes outlived the command and were killed (ranks: {left}): {names}"

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_S)
            self.job.reap()
            self._notices.check_clocks()

    def rank_began(self, rank: int, incarnation: str, pid: int) -> None:
        self._code.rank_began(rank, incarnation)
        self.job.adopt(pid)

    def rank_ended(self, rank: int, incarnation: str, exit_code: int | None) -> None:
        self._check_memory(f"rank {rank}", exit_code)
        now_unix_ms = self._clock.now_unix_ms()
        self._code.rank_ended(rank, incarnation, exit_code, now_unix_ms=now_unix_ms)
        self._rank_ended.set()
        if exit_code and not self._ranks.leaving and self._failed_count < FAILED_TOLD_MAX:
            self._failed_count += 1
            self._warn(f"rank {rank} {describe_exit(exit_code)}")
        self._check_launcher()

    def _check_launcher(self) -> None:
        """The ranks have left as ordered: nobody waits long for what launched them."""
        ended = self._code.all_ended(self._ranks.expected_count)
        if self._ranks.leaving and ended and self._launcher is None:
            loop = asyncio.get_running_loop()
            self._launcher = loop.call_later(LAUNCHER_S, self._end_launcher)

    def _end_launcher(self) -> None:
        if self.job.exit_code is None and not self._killing:
            self._killing = self._launcher_ended = True
            self._why_killed = "the launcher outlived its ranks and was ended"
            self._tasks.start(self._kill())

    def _overran(self, why: str) -> None:
        """The time to leave has come."""
        if self._killing:
            return
        self._killing = True
        self._launcher_ended = self._code.all_ended(self._ranks.expected_count)
        self._killed = self._code.live
        self._why_killed = why
        self._tasks.start(self._kill())

    async def _kill(self) -> None:
        await self.job.kill()

    def heard_signal(self, name: str) -> None:
        """Once more, while the job leaves."""
        if self._ranks.leaving:
            self._forward(name)

    def _forward(self, name: str) -> None:
        """Forward the signal to processes that have not attached, as a good init would."""
        if self._ranks.attached_all or self.job.exit_code is not None:
            return
        count = self.job.forward(signal.Signals[name])
        who = "some ranks have not" if self._ranks.ranks else "no process here has"
        self._warn(f"{who} called drainfsm.attach(): {name} is forwarded to {count} process(es)")

    def set_own_limit(self, kill_by_unix_ms: int | None) -> None:
        """At most the same share of the exit margin as the coordinator's backstop leaves."""
        exit_by = kill_by_unix_ms
        if exit_by is not None:
            left_ms = kill_to_exit_ms(self._config.allowances.exit_margin_ms)
            exit_by += min(left_ms, OWN_EXIT_MS_MAX)
        self._limits.set_own(kill_by_unix_ms, exit_by)

    # --- orders ---------------------------------------------------------------------------------

    def on_order(self, order: n.ToNode) -> None:
        ranks, here = self._ranks, self._offset.here
        match order:
            case n.Heartbeat(now_unix_ms=now):
                if now is not None:
                    self._offset.hear(now)
            case n.NoticeAnswer():
                self._notices.on_answer(order)
            case n.SetBackstop():
                self._set_backstop(order)
            case n.StartRanks():
                self._start.on_answer(order)
            case n.CordonNode():
                self._tasks.start(self._cordon(order))
            case n.HoldNode(answer_by_unix_ms=answer_by, drain_id=drain_id):
                ranks.hold(drain_id)
                self._expect(here(answer_by))
            case n.ReleaseNode(stop_step=stop_step, quiesce_by_unix_ms=quiesce_by):
                ranks.release_to(stop_step)
                self._expect(here(quiesce_by))
            case n.ResumeNode():
                self._expect(None)
                ranks.resume()
            case n.SaveNode(order=save):
                ranks.save(m.Save(order=save))
            case n.AbortNode(generation_id=generation_id):
                ranks.abort(generation_id)
            case n.LeaveNode(at_step=at_step, kill_by_unix_ms=kill_by):
                self._expect(None)
                ranks.leave(at_step)
                self._limits.set_leave(here(kill_by))
                self._check_launcher()
                self._forward(self._notices.heard_signal)
            case n.JobLeft(done_by_unix_ms=done_by, act_by_unix_ms=act_by):
                if not self._left.done():
                    self._left.set_result(
                        replace(order, done_by_unix_ms=here(done_by), act_by_unix_ms=here(act_by))
                    )

    def _set_backstop(self, order: n.SetBackstop) -> None:
        here, kill_by, exit_by = self._offset.here, order.kill_by_unix_ms, order.exit_by_unix_ms
        self._limits.set_backstop(
            None if kill_by is None else here(kill_by),
            None if exit_by is None else self._not_passed(here(exit_by)),
            scheduled=order.scheduled,
        )

    def _not_passed(self, exit_by_unix_ms: int) -> int:
        """The deadline had passed when the notice came: the ranks are killed at once, with a moment
        to record what comes next."""
        now_unix_ms = self._clock.now_unix_ms()
        passed = exit_by_unix_ms <= now_unix_ms
        return now_unix_ms + OVERDUE_EXIT_MS if passed else exit_by_unix_ms

    def _expect(self, by_unix_ms: int | None) -> None:
        """Report who is late, just before the wait is over."""
        if self._late is not None:
            self._late.cancel()
        if by_unix_ms is not None:
            self._late = self._tasks.start(self._report_late(by_unix_ms))

    async def _report_late(self, by_unix_ms: int) -> None:
        left_ms = max(0, by_unix_ms - self._clock.now_unix_ms())
        lead_ms = min(LATE_LEAD_MS_MAX, left_ms // 8)
        await asyncio.sleep(self._clock.seconds_until(by_unix_ms - 2 * lead_ms))
        self._ranks.ask()
        await asyncio.sleep(self._clock.seconds_until(by_unix_ms - lead_ms))
        if missing := self._ranks.missing():
            self._link.send(n.NodeLate(missing=missing))

    async def _cordon(self, order: n.CordonNode) -> None:
        outcome, detail = await self._adapters.cordon(order.nodes, timeout_ms=order.timeout_ms)
        self._link.send(n.NodeCordonDone(outcome=outcome, detail=detail, drain_id=order.drain_id))
