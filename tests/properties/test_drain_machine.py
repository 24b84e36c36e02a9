"""Any inputs, in any order, repeated and interleaved: the invariants hold (I1-I4, I6, I10, I12)."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from drainfsm.core import codec
from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.deadline import next_wake_unix_ms
from drainfsm.core.decider import AsItIs, decide
from drainfsm.core.effects import AnyEffect, effects_of
from drainfsm.core.fold import Fold
from drainfsm.core.records import Record
from drainfsm.core.rules import broken_rules, missed_deadline
from drainfsm.core.state import State, first_state
from drainfsm.errors import InputRejectedError, NoticeRejectedError
from drainfsm.machine import DrainModel
from drainfsm.testing import strategies

START_UNIX_MS = 1_800_000_000_000
MODEL = DrainModel(first_state(job_id="job", epoch=3))
"""Built once: building a ``transitions`` machine costs more than a whole example."""

REPEATABLE_EXCEPTIONS = get_args(AsItIs)
"""Each of these states one more occurrence; a second one is not a repeat."""


class Drains(RuleBasedStateMachine):
    """The core under every kind of input, with its log, a second reader and ``transitions``."""

    @initialize(
        allowances=strategies.allowances,
        samples=st.lists(strategies.samples, max_size=3).map(tuple),
        world_size=st.sampled_from((2, 4)),
    )
    def start(self, allowances: Allowances, samples: tuple[Sample, ...], world_size: int) -> None:
        self.now_unix_ms = START_UNIX_MS
        self.fold = Fold(job_id="job", epoch=3)
        self.model = MODEL
        self.model.state, self.model.folded = "idle", self.fold.state
        self.history: list[Record] = []
        self.states: list[State] = []
        self.submit(
            i.StartAttempt(
                attempt_id="a",
                node_count=world_size // 2,
                allowances=allowances,
                grace_ms=30_000,
                store=strategies.STORE,
                claim_slot=1,
                restore=None,
                samples=samples,
                lost_epoch=2,
            )
        )
        self.submit(i.FormWorld(world_size=world_size, save_bytes=10**6))

    def submit(self, given: i.AnyInput) -> None:
        before = self.fold.state
        try:
            events = decide(before, given, now_unix_ms=self.now_unix_ms)
        except (InputRejectedError, NoticeRejectedError):
            assert self.fold.state == before, "a refused input changed the state"
            return
        assert decide(before, given, now_unix_ms=self.now_unix_ms) == events, "not a function"
        if not events:
            return
        position = self.fold.position
        record = Record(
            id=f"r{position}",
            job_id="job",
            epoch=3,
            follows=position,
            at_unix_ms=self.now_unix_ms,
            events=events,
        )
        assert self.fold.read(record)
        for one in events:
            event(type(one).__name__)
            self.model.step(one)
            for effect in effects_of(one, self.fold.state):
                self.sane(effect)
        self.history.append(record)
        self.states.append(self.fold.state)
        if not isinstance(given, REPEATABLE_EXCEPTIONS):
            again = decide(self.fold.state, given, now_unix_ms=self.now_unix_ms)
            assert again == (), f"the same {type(given).__name__} again added {again}"

    def sane(self, effect: AnyEffect) -> None:
        """No instant is made up: what is not known never becomes the year 1970."""
        for name in effect.__struct_fields__:
            if name.endswith("_unix_ms") and (at := getattr(effect, name)) is not None:
                assert abs(at - START_UNIX_MS) < 30 * strategies.DAY_MS, effect

    @rule(data=st.data())
    def any_input(self, data: Any) -> None:
        state = self.fold.state
        self.submit(data.draw(strategies.inputs(state, now_unix_ms=self.now_unix_ms)))

    @rule(data=st.data())
    def next_good_input(self, data: Any) -> None:
        """What the shell would report next if all went well: drains get far this way."""
        state = self.fold.state
        if (given := strategies.good_input(state)) is not None:
            self.submit(given)

    @rule(elapsed_ms=st.sampled_from((0, 1, 50, 1_000, 5_000, 20_000)))
    def wait(self, elapsed_ms: int) -> None:
        """Time passes; the shell ticks whenever the core wanted to be woken."""
        until = self.now_unix_ms + elapsed_ms
        for _ in range(20):
            wake = next_wake_unix_ms(self.fold.state)
            if wake is None or wake > until:
                break
            self.now_unix_ms = max(self.now_unix_ms, wake)
            before = self.fold.position
            self.submit(i.Tick())
            assert self.fold.position > before, "a wake that changes nothing would come for ever"
        self.now_unix_ms = until

    @rule(data=st.data())
    def leaked_stale_record(self, data: Any) -> None:
        """Any record that stands elsewhere, or comes again, even in the next place, is skipped by
        every reader; so is one that would stand there in another attempt's log."""
        if not self.history:
            return
        before, position = self.fold.state, self.fold.position
        known = data.draw(st.sampled_from(self.history))
        moved = replace(known, follows=position)
        others = (replace(moved, id="new", epoch=2), replace(moved, id="new", job_id="other"))
        for leaked in (known, moved, *others):
            assert not self.fold.read(leaked)
            assert (self.fold.state, self.fold.position) == (before, position)

    @invariant()
    def rules_hold(self) -> None:
        if hasattr(self, "history"):
            assert broken_rules(self.history) == []
            assert missed_deadline(self.history) == ""

    @invariant()
    def transitions_machine_agrees(self) -> None:
        if hasattr(self, "history"):
            assert self.model.state == self.fold.state.phase.value
            assert self.model.folded == self.fold.state

    def teardown(self) -> None:
        """Every drain ends by its deadline, and every prefix replays to the state that was live."""
        if not hasattr(self, "history"):
            return
        self.wait(10 * strategies.DAY_MS)
        assert not self.fold.state.phase.active, "time alone must end every drain"
        data = codec.encode_lines(self.history)
        replayed = Fold(job_id="job", epoch=3)
        for record, live in zip(codec.decode_lines(data), self.states, strict=True):
            assert replayed.read(record)
            assert replayed.state == live
        assert codec.encode_lines(list(codec.decode_lines(data))) == data
        self.rules_hold()


def test_drains() -> None:
    """By a function: Hypothesis reads the source of a class by ``ast``, which CPython 3.11 gets
    wrong once something else in the process has recursed too deeply."""
    run = settings(max_examples=150, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(lambda: Drains(), settings=run)  # type: ignore[arg-type]
