"""The embedding API: callbacks, effects, and following a drain from its records."""

from __future__ import annotations

import itertools

import pytest
from transitions import Machine

from drainfsm.core import inputs as i
from drainfsm.core.effects import CordonNodes, HoldRanks, LeaveRanks, StartSave
from drainfsm.core.events import DrainDue, NodeCordoned
from drainfsm.core.lifecycle import LIFECYCLE
from drainfsm.core.records import Record
from drainfsm.core.state import Phase
from drainfsm.core.words import CordonOutcome
from drainfsm.errors import EventRefusedError, InputRejectedError
from drainfsm.machine import DrainMachine, DrainModel, transition_rows
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario


def _machine(appended: list[Record] | None = None) -> DrainMachine:
    return DrainMachine(
        job_id="job",
        world_size=2,
        append=None if appended is None else appended.append,
        now_unix_ms=itertools.count(NOON_UNIX_MS).__next__,
    )


def _wired(machine: DrainMachine) -> list[str]:
    """A launcher in a few lines: every effect is answered at once."""
    done: list[str] = []
    machine.on_effect(
        CordonNodes,
        lambda m, x: m.report(i.ReportCordon(outcome=CordonOutcome.SUCCESS, duration_ms=1)),
    )
    machine.on_effect(
        HoldRanks,
        lambda m, x: m.report(
            i.ReportPositions(
                positions=(i.NodePosition(node=0, ranks=(0, 1), min_step=7, max_step=8, step_ms=1),)
            )
        ),
    )
    machine.on_effect(StartSave, lambda m, x: done.append(x.generation_id))
    machine.on_effect(LeaveRanks, lambda m, x: done.append("leave"))
    return done


def test_callbacks_feed_the_machine_and_effects_run_after_the_append() -> None:
    appended: list[Record] = []
    machine = _machine(appended)
    done = _wired(machine)
    entered: list[str] = []
    for state in ("noticed", "quiescing", "saving"):
        machine.on_enter(state, lambda m: entered.append(m.state))
    machine.notice(deadline_unix_ms=NOON_UNIX_MS + 60_000, cause="spot")
    assert entered == ["noticed", "quiescing"]
    machine.report(i.ReportQuiesced(node=0, ranks=(0, 1), step=9))
    assert entered == ["noticed", "quiescing", "saving"]
    assert done == ["e000001-s000000000009-d1"]
    assert [r.follows for r in appended] == list(range(len(appended)))
    assert machine.state == "saving"


def test_a_failed_append_changes_nothing_and_runs_no_effect() -> None:
    def full(record: Record) -> None:
        raise OSError("no space left")

    machine = _machine()
    done = _wired(machine)
    machine._append = full
    with pytest.raises(OSError, match="no space"):
        machine.notice(deadline_unix_ms=NOON_UNIX_MS + 60_000)
    assert (machine.state, done) == ("idle", [])


def test_another_machine_follows_from_the_records_and_skips_repeats() -> None:
    records: list[Record] = []
    machine = _machine(records)
    _wired(machine)
    machine.notice(deadline_unix_ms=NOON_UNIX_MS + 60_000)
    follower = DrainMachine.follow(job_id="job", epoch=1)
    entered: list[str] = []
    follower.on_enter("quiescing", lambda m: entered.append(m.state))
    for record in records:
        assert follower.apply(record)
        assert not follower.apply(record)
    assert follower.folded == machine.folded
    assert (follower.state, entered) == ("quiescing", ["quiescing"])


def test_a_refused_input_leaves_the_machine_usable() -> None:
    machine = _machine()
    with pytest.raises(InputRejectedError):
        machine.report(i.ReportCordon(outcome=CordonOutcome.SUCCESS, duration_ms=1))
    machine.notice(deadline_unix_ms=NOON_UNIX_MS + 60_000)
    assert machine.state == "noticed"


def test_an_unknown_state_is_no_state_to_hang_a_callback_on() -> None:
    with pytest.raises(ValueError, match="brewing"):
        _machine().on_enter("brewing", lambda m: None)


def test_the_transitions_machine_has_the_rows_of_the_table_and_no_other() -> None:
    model = DrainModel(Scenario().state)
    assert isinstance(model.machine, Machine)
    assert set(model.machine.events) == {row.kind for row in LIFECYCLE}
    assert set(model.machine.states) == {phase.value for phase in Phase}
    assert len(transition_rows()) == sum(len(row.sources) for row in LIFECYCLE)


def test_an_event_without_an_arrow_is_refused_by_the_transitions_machine_too() -> None:
    s = Scenario()
    s.given(s.notice(), s.cordoned())
    (record,) = [r for r in s.history if isinstance(r.events[0], NodeCordoned)]
    event = record.events[0]
    assert isinstance(event, NodeCordoned)
    model = DrainModel(Scenario().state)
    with pytest.raises(EventRefusedError, match="drain_due"):
        model.step(DrainDue(reason="", budget=event.budget))
    assert model.state == "idle"
