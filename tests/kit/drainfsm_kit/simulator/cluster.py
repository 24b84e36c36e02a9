"""The scheduler of a simulated cluster: starts attempts, and hands out what the plan holds."""

from __future__ import annotations

from drainfsm.core.notice import Cause, Notice, NoticeClass
from drainfsm.core.state import Phase
from drainfsm.runtime.agent.signals import notice_of
from drainfsm.runtime.wire import rank_messages as m
from drainfsm_kit.simulator.agent import SimulatedAgent
from drainfsm_kit.simulator.attempt import SimulatedAttempt
from drainfsm_kit.simulator.faults import FAULTS
from drainfsm_kit.simulator.machine import BEGIN_UNIX_MS
from drainfsm_kit.simulator.plan import Event, GivenNotice, Happening
from drainfsm_kit.simulator.source import SOURCE, hears, hears_withdrawal
from drainfsm_kit.simulator.timeline import US_PER_MS
from drainfsm_kit.simulator.universe import Universe

RESTART_MS = (300, 2_000)
DETECT_MS = (3_000, 10_000)
"""Until the scheduler knows that a machine is gone."""

END_NOTICE_MS = 20_000
"""The notice that ends every attempt gives so much."""

GO_ON_MS = 8_000
"""After a drain was called off, for the ranks to complete another step."""

REPEAT_MS = (0, 900)


class Cluster:
    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.attempts: list[SimulatedAttempt] = []
        self.done = False
        """The job is finished."""

        self._world = universe.plan.world
        self._starting = False
        self._chance = universe.chance.stream("cluster")
        self._disk = universe.new_disk()

    # --- attempts -------------------------------------------------------------------------------

    def start_attempt(self) -> None:
        self._starting = False
        if self.attempts and not self._world.same_disk:
            self._disk = self.universe.new_disk()
        number = len(self.attempts) + 1
        attempt = SimulatedAttempt(self.universe, self, number=number, disk=self._disk)
        self.attempts.append(attempt)
        attempt.start()
        self.universe.timeline.after(self._world.end_ms * US_PER_MS, self._end, attempt)
        for event in self.universe.plan.events:
            if event.attempt == number and event.phase is None:
                self._plan(event, attempt)

    def start_next(self, attempt: SimulatedAttempt, *, after_ms: int = 0) -> bool:
        """Another attempt, unless there is one already or there were enough."""
        newest = attempt is self.attempts[-1]
        if self.done or self._starting or not newest or attempt.number >= self._world.attempts_max:
            return False
        self._starting = True
        self.universe.timeline.after(after_ms * US_PER_MS, self.start_attempt)
        return True

    def agent_ended(self, agent: SimulatedAgent) -> None:
        if agent.node > 0:
            return
        if agent.process.exit_code == 0:
            self.done = True
        powered = agent.machine.powered
        after_ms = self._chance.randint(*(RESTART_MS if powered else DETECT_MS))
        self.start_next(agent.attempt, after_ms=after_ms)

    def attempt_of(self, epoch: int) -> SimulatedAttempt | None:
        """The one that claimed it, if it lived to tell."""
        for attempt in self.attempts:
            state = attempt.state
            if state is not None and state.attempt.epoch == epoch:
                return attempt
        return None

    @property
    def over(self) -> bool:
        if self._starting or self.universe.living:
            return False
        jobs = (agent.job for attempt in self.attempts for agent in attempt.agents)
        ranks = (rank for job in jobs if job is not None for rank in job.living())
        return all(rank.out_of_reach for rank in ranks)

    def _end(self, attempt: SimulatedAttempt) -> None:
        """Nothing runs for ever: the machines are wanted back."""
        for agent in attempt.agents:
            given = GivenNotice(
                what="platform", attempt=attempt.number, native_id="end", in_ms=END_NOTICE_MS
            )
            self._give(given, agent)

    # --- the plan -------------------------------------------------------------------------------

    def phase_reached(self, attempt: SimulatedAttempt, phase: Phase) -> None:
        for event in self.universe.plan.events:
            if event.attempt == attempt.number and event.phase is phase:
                self._plan(event, attempt)

        if phase is Phase.CANCELLED:
            steps = [rank.step for rank in attempt.living_ranks()]
            self.universe.timeline.after(GO_ON_MS * US_PER_MS, self._went_on, attempt, steps)

    def _went_on(self, attempt: SimulatedAttempt, steps: list[int]) -> None:
        """A drain that was called off leaves no rank held."""
        state = attempt.state
        if self.universe.calm and state is not None and state.phase is Phase.CANCELLED:
            now = [rank.step for rank in attempt.living_ranks()]
            if state.attempt.exit_code is None and steps and now and min(now) <= max(steps) + 1:
                self.universe.wrong.append(f"the ranks stand at {now} since the drain was off")

    def _plan(self, event: Event, attempt: SimulatedAttempt) -> None:
        self.universe.timeline.after(event.after_ms * US_PER_MS, self._happen, event, attempt)

    def _happen(self, event: Event, attempt: SimulatedAttempt) -> None:
        agent = attempt.agents[event.node]
        match event:
            case Happening(what=what):
                if FAULTS[what](self, agent, event):
                    self.universe.tally.hit(what)
            case GivenNotice(times=times):
                for _ in range(times):
                    delay_us = self._chance.randint(*REPEAT_MS) * US_PER_MS if times > 1 else 0
                    self.universe.timeline.after(delay_us, self._give, event, agent)

    def _give(self, given: GivenNotice, agent: SimulatedAgent) -> None:
        process = agent.process
        if process.dead or agent.agent is None:
            return
        self._count(given, agent)
        if given.withdraw:
            self._withdraw(given, agent)
            return
        notice = self._notice(given, agent)
        agent.attempt.noticed = True
        self._note(given, agent)
        match given.what:
            case "platform":
                agent.platform.tell(hears(notice))
            case "notify":
                call = m.GiveNotice(notice=notice)
                process.call_soon(self._call, agent, call)
            case _:
                process.call_soon(agent.agent.hear, notice)

    def _withdraw(self, given: GivenNotice, agent: SimulatedAgent) -> None:
        if given.what == "platform":
            word = hears_withdrawal(source=SOURCE, native_id=given.native_id, reason="called off")
            agent.platform.tell(word)
        else:
            call = m.TakeBack(source=given.what, native_id=given.native_id, reason="called off")
            agent.process.call_soon(self._call, agent, call)

    def _call(self, agent: SimulatedAgent, call: m.FromCaller) -> None:
        """``drainfsm notify``."""
        if agent.listening and agent.call is not None:
            agent.process.create_task(agent.call(call))

    def _notice(self, given: GivenNotice, agent: SimulatedAgent) -> Notice:
        true_unix_ms = BEGIN_UNIX_MS + self.universe.timeline.now_ms
        heard_unix_ms = agent.clock.unix_ms(self.universe.timeline.now_ms)
        if given.what == "signal":
            return notice_of("SIGTERM", now_unix_ms=heard_unix_ms)
        deadline = None if given.in_ms is None else true_unix_ms + given.in_ms + given.skew_ms
        return Notice(
            source=SOURCE if given.what == "platform" else given.what,
            native_id=given.native_id,
            cause=Cause("reclaimed" if given.hard else "maintenance"),
            notice_class=NoticeClass.HARD if given.hard else NoticeClass.SOFT,
            deadline_unix_ms=deadline,
            received_unix_ms=heard_unix_ms,
            clock_skew_ms=given.skew_ms + self._world.allowances.clock_skew_ms,
        )

    def _note(self, given: GivenNotice, agent: SimulatedAgent) -> None:
        """From here on this node must be gone in time, whatever the coordinator does. Once the
        attempt is over nothing follows from a notice: its agents are about to end."""
        state = agent.attempt.state
        over = state is not None and (
            state.attempt.exit_code is not None or state.phase is Phase.LOST
        )
        if given.hard and agent.listening and not over:
            now_ms = self.universe.timeline.now_ms
            in_ms = self._world.grace_ms if given.in_ms is None else given.in_ms
            deadline_ms = now_ms + in_ms + given.skew_ms
            if given.in_ms is not None:
                agent.stated_ms.append(deadline_ms)
            elif agent.stated_ms:  # what is assumed tightens nothing that was stated
                deadline_ms = max(deadline_ms, min(agent.stated_ms))
            agent.heard.append((now_ms, deadline_ms))

    def _count(self, given: GivenNotice, agent: SimulatedAgent) -> None:
        state = agent.attempt.state
        phase = "unclaimed" if state is None else state.phase.value
        kind = "hard" if given.hard else "soft"
        how = "withdrawn" if given.withdraw else kind
        self.universe.tally.notices[f"{given.what} {how}", phase] += 1
