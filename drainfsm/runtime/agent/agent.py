"""``drainfsm run``: one agent per node. It owns the processes of the job, and the time."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from msgspec.structs import replace

from drainfsm.adapter import Departure
from drainfsm.core.decider import EX_TEMPFAIL
from drainfsm.core.exit_plan import closing_ms, kill_to_give_up_ms
from drainfsm.core.notice import Notice
from drainfsm.core.state import Phase, State
from drainfsm.core.trace import trace_id
from drainfsm.errors import (
    BrokerError,
    ConfigError,
    CoordinatorLostError,
    StartRefusedError,
    StoreUnreachableError,
)
from drainfsm.runtime.agent.adapters import RunningAdapters
from drainfsm.runtime.agent.clock_offset import Offset
from drainfsm.runtime.agent.coordinator_link import CoordinatorLink, decline, join
from drainfsm.runtime.agent.host import Host
from drainfsm.runtime.agent.host_machine import HostMachine
from drainfsm.runtime.agent.job_timeout import hear_job_timeout
from drainfsm.runtime.agent.left_for import LeftFor
from drainfsm.runtime.agent.node import Node
from drainfsm.runtime.agent.node_machine import NodeMachine
from drainfsm.runtime.agent.notices import Notices
from drainfsm.runtime.agent.signals import hear_signals
from drainfsm.runtime.agent.start import check_machine, exit_code_of, refusal_of, with_token
from drainfsm.runtime.clock import Clock
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.coordinator.attempt_end import FENCED_EXIT_CODE
from drainfsm.runtime.processes.job import become_subreaper
from drainfsm.runtime.threads import Tasks
from drainfsm.runtime.wire import node_messages as n

START_AGAIN_MS = 30_000
"""For adapters to get a job started again that could not be started here."""

log = logging.getLogger("drainfsm.agent")


async def run_agent(config: RunConfig, *, log_fields: dict[str, object] | None = None) -> int:
    """Runs the command under an agent. Returns the job's own exit code; 75 where it drained and
    wants to be started again; 76 where a newer attempt has taken the job over. ``log_fields``: gets
    what log messages are about (``epoch``, ``drain_id``, ``trace_id``), as far as it is known.

    Raises:
        ConfigError: something cannot work as configured.
        StoreError, CheckpointError: the attempt could not be claimed or restored.
        StartRefusedError: node 0 could not start it.
        AuthenticationError, NodeRankTakenError, CoordinatorLostError: this node was not let in.
    """
    become_subreaper()
    return await Agent(config, log_fields=log_fields).run()


def _adapters(config: RunConfig, clock: Clock, *, warn: Callable[[str], None]) -> RunningAdapters:
    memory = LeftFor(config.state_dir, job=config.job, node_rank=config.node_rank)
    return RunningAdapters(config, clock, warn=warn, memory=memory)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentParts:
    """What an agent is put together from. The simulator has its own."""

    check_machine: Callable[[RunConfig], None] = check_machine
    make_host_machine: Callable[..., HostMachine] = HostMachine
    make_node_machine: Callable[..., NodeMachine] = NodeMachine
    make_adapters: Callable[..., RunningAdapters] = _adapters
    make_node: Callable[..., Node] = Node


class Agent:
    """The life of one agent: join, run the command, leave."""

    def __init__(
        self,
        config: RunConfig,
        *,
        warn: Callable[[str], None] = log.warning,
        clock: Clock | None = None,
        parts: AgentParts | None = None,
        log_fields: dict[str, object] | None = None,
    ) -> None:
        self._config = config
        self._log_fields = {} if log_fields is None else log_fields
        self._warn = warn
        self._clock = Clock() if clock is None else clock
        self._parts = AgentParts() if parts is None else parts
        self._tasks = Tasks(warn)
        self._offset = Offset(self._clock)
        self._notices = Notices(config, self._clock, self._offset, warn=warn)
        self._host: Host | None = None
        self._others: set[int] = set()
        """Ids of child processes that are not the job's."""

        self._adapters: RunningAdapters | None = None
        """None until the checks before the start have passed."""

        self._done_by_unix_ms = 0
        """When the job has left: the end of what is left of the exit margin."""

    async def run(self) -> int:
        with hear_signals(self._config.signals, self._clock, self.hear):
            exit_code = await self.live()
            if self._adapters is not None:
                await self._adapters.stay()
            return exit_code

    def hear(self, notice: Notice) -> None:
        """From a signal."""
        self._notices.hear(notice)

    async def live(self) -> int:
        """Deaf to signals."""
        try:
            return await self._run()
        finally:
            await self._tasks.cancel()

    async def _run(self) -> int:
        try:
            link = await self._notices.unless_overdue(self._join())
        except (StoreUnreachableError, StartRefusedError, BrokerError) as error:
            exit_code = exit_code_of(error)
            if exit_code != EX_TEMPFAIL:
                raise
            self._warn(f"{error}; nothing was started, exit code {exit_code} asks for another try")
            await self._ask_for_another_start()
            return exit_code
        if link is None:
            self._warn("a notice's time was up before the job could start")
            await self._ask_for_another_start()
            return EX_TEMPFAIL
        try:
            return await self._run_node(link)
        finally:
            link.close()
            if self._host is not None:
                await self._host.close(timeout_ms=self._close_ms())

    async def _ask_for_another_start(self) -> None:
        """Nothing has run, but the platform should start it again nevertheless."""
        timeout_ms = START_AGAIN_MS
        if self._notices.overdue:
            left_ms = kill_to_give_up_ms(self._config.allowances.exit_margin_ms)
            timeout_ms = min(timeout_ms, left_ms)
        await self._check().left(Departure(requeue=True, timeout_ms=timeout_ms))

    def _close_ms(self) -> int:
        """Until the time to be done, and a share of the exit margin in any case."""
        left_ms = self._done_by_unix_ms - self._clock.now_unix_ms()
        return max(left_ms, closing_ms(self._config.allowances.exit_margin_ms))

    async def _join(self) -> CoordinatorLink:
        self._config = config = await with_token(self._config)
        if config.node_rank > 0:
            try:
                self._check()
            except ConfigError as error:
                await decline(config, refusal_of(error))
                raise
            return await join(config, warn=self._warn)
        machine = self._parts.make_host_machine(config, others=self._others, warn=self._warn)
        self._host = await Host.start(
            config,
            self._clock,
            self._tasks,
            machine,
            check=lambda: self._check().interpret,
            show=self._show,
            warn=self._warn,
        )
        return self._host.link

    def _show(self, state: State) -> None:
        in_drain = state.drain is not None and state.phase is not Phase.CANCELLED
        self._log_about(state.current.drain_id if in_drain else "")
        self._check().show(state)

    def _log_about(self, drain_id: str) -> None:
        """Empty: no drain is open."""
        about = {"drain_id": drain_id, "trace_id": trace_id(drain_id)} if drain_id else {}
        for name in ("drain_id", "trace_id"):
            self._log_fields.pop(name, None)
        self._log_fields.update(about)

    def _check(self) -> RunningAdapters:
        """Raises: ConfigError: something cannot work, on this machine or with an adapter."""
        if self._adapters is None:
            self._parts.check_machine(self._config)
            self._adapters = self._parts.make_adapters(self._config, self._clock, warn=self._warn)
        return self._adapters

    async def _run_node(self, link: CoordinatorLink) -> int:
        config, epoch = self._config, link.welcome.epoch
        self._offset.hear(link.welcome.now_unix_ms)
        self._log_fields["epoch"] = epoch
        adapters = self._check()
        adapters.claimed(epoch=epoch)
        machine = self._parts.make_node_machine(
            config, self._clock, others=self._others, warn=self._warn
        )
        node = self._parts.make_node(
            config,
            self._clock,
            link,
            adapters,
            self._notices,
            self._tasks,
            self._warn,
            self._offset,
            machine,
        )
        connection = self._tasks.start(self._follow(link, node))
        try:
            async with node.listening():
                self._notices.connect(link, node)
                adapters.start(self._tasks, self._notices)
                self._start_timeout(epoch)
                node.start()
                left = await self._unless_fenced(await node.left())
            self._done_by_unix_ms = left.done_by_unix_ms
            await self._say_goodbye(adapters, left)
        finally:
            connection.cancel()
            await node.end()
        return left.exit_code

    async def _unless_fenced(self, left: n.JobLeft) -> n.JobLeft:
        """Node 0 looks once more, also where it leaves without its coordinator's word."""
        if self._host is None or left.exit_code == FENCED_EXIT_CODE:
            return left
        left_ms = left.done_by_unix_ms - self._clock.now_unix_ms()
        timeout_ms = max(left_ms // 2, 2 * closing_ms(self._config.allowances.exit_margin_ms))
        if not await self._host.fenced(timeout_ms=timeout_ms):
            return left
        return replace(left, exit_code=FENCED_EXIT_CODE, requeue=False, left_for=())

    def _start_timeout(self, epoch: int) -> None:
        config = self._config
        if config.job_timeout_s and config.node_rank == 0:
            timeout = hear_job_timeout(
                config.job_timeout_s, self._clock, epoch=epoch, hear=self.hear
            )
            self._tasks.start(timeout)

    async def _follow(self, link: CoordinatorLink, node: Node) -> None:
        def on_order(order: n.ToNode) -> None:
            if isinstance(order, n.CordonNode | n.HoldNode):
                self._log_about(order.drain_id)
            elif isinstance(order, n.ResumeNode):
                self._log_about("")
            node.on_order(order)

        try:
            await link.run(on_order)
        except CoordinatorLostError as error:
            node.lose(f"{error}: the attempt is lost")
        except Exception as error:
            node.lose(f"a bug in handling an order: {error!r}")
            raise

    async def _say_goodbye(self, adapters: RunningAdapters, left: n.JobLeft) -> None:
        """The log's last records, then the adapters' last acts, within the time: an acknowledgement
        may let the platform take the machine away at once."""
        if left.done_by_unix_ms <= self._clock.now_unix_ms():
            return
        act_by_unix_ms = max(left.act_by_unix_ms, left.done_by_unix_ms)
        if self._host is not None:
            left_ms = act_by_unix_ms - self._clock.now_unix_ms()
            margin_ms = self._config.allowances.exit_margin_ms
            await self._host.flush(timeout_ms=min(left_ms // 2, margin_ms))
        departure = Departure(
            requeue=left.requeue,
            held=left.held,
            left_for=frozenset(left.left_for),
            timeout_ms=max(0, act_by_unix_ms - self._clock.now_unix_ms()),
        )
        await adapters.left(departure)
