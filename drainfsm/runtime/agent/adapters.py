"""The adapters of one agent: notice sources that are watched, the cordon, and the last acts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from drainfsm.adapter import (
    Adapter,
    AdapterContext,
    Cordon,
    Departure,
    Interpreter,
    JobStatus,
    LastRequeuer,
    Notice,
    NoticeSource,
    Requeuer,
    StatusDisplay,
    Staying,
    load_adapter,
    options_name,
)
from drainfsm.core.backoff import backoff_s
from drainfsm.core.state import State
from drainfsm.core.words import CordonOutcome
from drainfsm.errors import ConfigError
from drainfsm.runtime.agent.former_adapters import of_today
from drainfsm.runtime.agent.left_for import (
    LeftFor,
    judged,
    remembered_as,
    remembered_deadline,
)
from drainfsm.runtime.clock import Clock, loop_ms
from drainfsm.runtime.config import RunConfig
from drainfsm.runtime.threads import Tasks, in_thread

RESTART_S = 1.0
"""Before a source that failed is watched again; doubles up to ``RESTART_S_MAX``."""

RESTART_S_MAX = 30.0
SETTLED_MS = 60_000
"""A source that was watched for this long did not fail at its start."""

REMEMBER_MS = 1_000
"""For the state directory to store what the job leaves for."""

INTERPRET_MS = 1_000
"""What the handler's allowance is for: until then a signal's deadline is the job's grace."""


class NoticeListener(Protocol):
    """Where what is heard goes: the agent."""

    def hear(self, notice: Notice) -> None: ...
    def take_back(self, source: str, native_id: str, reason: str) -> None: ...
    def source_state(self, source: str, since_unix_ms: int | None, detail: str) -> None: ...


class Sink:
    """A ``NoticeSink``: hands on what is new, once."""

    def __init__(self, listener: NoticeListener, *, judged: Callable[[Notice], Notice]) -> None:
        """``judged``: turns a notice that an earlier attempt has left for into advice."""
        self._listener = listener
        self._judged = judged
        self._present: dict[str, Notice] = {}
        """As the source gave them."""

        self._advice: set[str] = set()
        self._unknown: set[str] = set()

    def notice(self, notice: Notice) -> None:
        identity = notice.identity
        before = self._present.get(identity)
        if before is not None and _same(before, notice):
            return
        self._present[identity] = notice
        judged = self._judged(notice)
        if judged.advisory:
            self._advice.add(identity)
        else:
            self._advice.discard(identity)
        self._listener.hear(judged)

    def withdraw(self, *, source: str, native_id: str, reason: str) -> None:
        identity = f"{source}/{native_id}"
        if self._present.pop(identity, None) is not None and identity not in self._advice:
            self._listener.take_back(source, native_id, reason)
        self._advice.discard(identity)

    def unknown(self, *, source: str, since_unix_ms: int, detail: str) -> None:
        if source not in self._unknown:
            self._unknown.add(source)
            self._listener.source_state(source, since_unix_ms, detail)

    def recovered(self, *, source: str) -> None:
        if source in self._unknown:
            self._unknown.discard(source)
            self._listener.source_state(source, None, "")


def _same(before: Notice, now: Notice) -> bool:
    """Heard again, only later: the core takes the earliest deadline anyway."""
    fields = ("notice_class", "deadline_unix_ms", "nodes", "cause", "advisory")
    return all(getattr(before, name) == getattr(now, name) for name in fields)


class RunningAdapters:
    def __init__(
        self,
        config: RunConfig,
        clock: Clock,
        *,
        warn: Callable[[str], None],
        memory: LeftFor | None = None,
        load: Callable[[str, AdapterContext], Adapter] = load_adapter,
    ) -> None:
        """``memory``: None where nothing is remembered.

        Raises:
            ConfigError: an adapter is not installed, or refuses its options.
        """
        self._epoch = 0
        """0: not claimed yet. What is found wrong here must be found before the claim."""

        self._shown = JobStatus(epoch=0, phase="idle")
        self._config = config
        self._clock = clock
        self._warn = warn
        self._memory = memory
        self._left_for = {} if memory is None else memory.read()
        self._heard: dict[str, Notice] = {}
        """Notices heard here that are more than advice, by identity."""

        self._adapters: dict[str, Adapter] = {}
        for name in dict.fromkeys((*config.source, *filter(None, (config.cordon,)))):
            context = AdapterContext(
                job_id=config.job,
                epoch=lambda: self._epoch,
                left_for=self._left_for,
                node_rank=config.node_rank,
                node_count=config.nnodes,
                grace_ms=round(config.grace_s * 1_000),
                options=config.adapters.get(options_name(name), {}),
                now_unix_ms=clock.now_unix_ms,
            )
            self._adapters[name] = of_today(name, load(name, context))
        if config.cordon and not isinstance(self._adapters[config.cordon], Cordon):
            raise ConfigError(f"--cordon {config.cordon}: this adapter has no cordon")

    def claimed(self, *, epoch: int) -> None:
        """The attempt has its number: adapters may ask for it from now on."""
        self._epoch = epoch

    def start(self, tasks: Tasks, listener: NoticeListener) -> None:
        for name in self._config.source:
            adapter = self._adapters[name]
            if isinstance(adapter, NoticeSource):
                sink = Sink(listener, judged=self._judged)
                tasks.start(self._watch(name, adapter, sink, listener))

    def _judged(self, notice: Notice) -> Notice:
        notice = judged(notice, self._left_for, now_unix_ms=self._clock.now_unix_ms())
        if not notice.advisory:
            self._heard[notice.identity] = notice
        return notice

    async def _watch(
        self, name: str, source: NoticeSource, sink: Sink, listener: NoticeListener
    ) -> None:
        failure_count = 0
        while True:
            began_ms = loop_ms()
            try:
                await source.watch(sink)
                detail = "the source stopped by itself"
            except Exception as error:  # an adapter's bug must not end the job
                detail = f"{type(error).__name__}: {error}"
            failure_count = 1 if loop_ms() - began_ms > SETTLED_MS else failure_count + 1
            pause_s = backoff_s(failure_count, first_s=RESTART_S, longest_s=RESTART_S_MAX)
            self._warn(f"source {name}: {detail}; watched again in {pause_s:g} s")
            listener.source_state(name, self._clock.now_unix_ms(), detail)
            await asyncio.sleep(pause_s)

    async def cordon(self, nodes: tuple[str, ...], *, timeout_ms: int) -> tuple[CordonOutcome, str]:
        """Outcome and detail, within the time."""
        adapter = self._adapters.get(self._config.cordon)
        if not isinstance(adapter, Cordon):
            return CordonOutcome.NOT_CONFIGURED, ""
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                detail = await adapter.cordon(nodes, timeout_ms=timeout_ms)
        except TimeoutError:
            return CordonOutcome.TIMED_OUT, f"no answer within {timeout_ms} ms"
        except Exception as error:  # recorded; the drain goes on
            return CordonOutcome.FAILED, f"{type(error).__name__}: {error}"
        return CordonOutcome.SUCCESS, detail

    async def interpret(self, notice: Notice) -> Notice | None:
        """A signal's notice, as a source explains it. None: the source gives a notice of its
        own."""
        for name in self._config.source:
            adapter = self._adapters[name]
            if not isinstance(adapter, Interpreter):
                continue
            try:
                async with asyncio.timeout(INTERPRET_MS / 1_000):
                    meaning = await adapter.interpret(notice, timeout_ms=INTERPRET_MS)
            except TimeoutError:
                self._warn(f"{name}: took too long to say what {notice.native_id} means")
            except Exception as error:  # the bare signal still counts
                self._warn(f"{name}: {type(error).__name__}: {error}")
            else:
                if meaning is None:
                    self._warn(f"{name}: {notice.native_id} says no more than what is known")
                return meaning
        return notice

    def show(self, state: State) -> None:
        """After a decision, on node 0."""
        committed, drain = state.attempt.committed, state.drain
        step = None if committed is None else committed.step
        if step != self._shown.committed_step:
            first = self._shown.epoch == 0
            at = None if first or step is None else self._clock.now_unix_ms()
        else:
            at = self._shown.committed_unix_ms
        self._shown = JobStatus(
            epoch=state.attempt.epoch,
            phase=state.phase,
            deadline_unix_ms=drain.deadline_unix_ms if drain and state.phase.active else None,
            committed_step=step,
            committed_unix_ms=at,
        )
        for name, adapter in self._adapters.items():
            if isinstance(adapter, StatusDisplay):
                try:
                    adapter.show(self._shown)
                except Exception as error:  # showing a decision never holds it up
                    self._warn(f"{name}: {type(error).__name__}: {error}")

    async def stay(self) -> None:
        """The last of all: where the platform must end this process, wait for it."""
        for adapter in self._adapters.values():
            if isinstance(adapter, Staying):
                await adapter.stay()

    async def left(self, departure: Departure) -> None:
        """The whole job has left: every adapter's last act, side by side; at the end those after
        which the machine may go at once. What it has left for is remembered first of all."""
        give_up_ms = loop_ms() + departure.timeout_ms
        await self._remember(departure)
        requeuers = {n: a for n, a in self._adapters.items() if isinstance(a, Requeuer)}
        last = {
            n: a for n, a in requeuers.items() if isinstance(a, LastRequeuer) and a.takes_machine
        }
        first = {name: requeuers[name] for name in requeuers if name not in last}
        for acts in (first, last):
            left = replace(departure, timeout_ms=max(0, give_up_ms - loop_ms()))
            await asyncio.gather(*(self._left(name, act, left) for name, act in acts.items()))

    async def _remember(self, departure: Departure) -> None:
        memory = self._memory
        heard = {
            remembered_as(notice): remembered_deadline(notice)
            for identity, notice in self._heard.items()
            if identity in departure.left_for
        }
        if memory is None or not heard:
            return
        try:
            async with asyncio.timeout(min(REMEMBER_MS, departure.timeout_ms // 4) / 1_000):
                await in_thread("left-for", lambda: memory.add(heard))
        except (OSError, TimeoutError) as error:
            self._warn(f"cannot remember what this attempt leaves for: {error or 'too slow'}")

    async def _left(self, name: str, adapter: Requeuer, departure: Departure) -> None:
        try:
            async with asyncio.timeout(departure.timeout_ms / 1_000):
                detail = await adapter.left(departure)
        except TimeoutError:
            self._warn(f"{name}: its last act took longer than {departure.timeout_ms} ms")
        except Exception as error:  # an adapter's bug must not keep the process
            self._warn(f"{name}: {type(error).__name__}: {error}")
        else:
            if detail:
                self._warn(f"{name}: {detail}")
