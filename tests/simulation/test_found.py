"""Stories that the simulator found to end badly once, told again in plans of their own."""

from __future__ import annotations

from collections.abc import Iterator

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.rules import events_of
from drainfsm.core.state import Phase
from drainfsm.testing.simulator.plan import Event, GivenNotice, Happening, Plan, World
from drainfsm.testing.simulator.simulation import Result, simulate

WORLD = World(
    node_count=2,
    ranks_per_node=2,
    attempts_max=1,
    step_ms=300,
    step_count=200,
    save_every=0,
    save_bytes=8_000,
    write_ms=800,
    load_ms=100,
    allowances=Allowances(
        quiesce_ms=2_000,
        commit_ms=1_000,
        exit_margin_ms=4_000,
        clock_skew_ms=0,
        store_bytes_per_s=10_000,
        barrier_ms=200,
    ),
    grace_ms=15_000,
    skews_ms=(0,),
    end_ms=40_000,
)


def told(*events: Event, seed: int = 1) -> Result:
    result = simulate(Plan(seed=seed, world=WORLD, events=events))
    assert result.problems == []
    return result


def facts(result: Result) -> list[e.Event]:
    return [event for _, records in result.history for event in events_of(records)]


def committed_after_giving_up() -> Iterator[tuple[str, str | None]]:
    """Generations whose commit was on its way when the deadline moved, and what was recorded."""
    for after_ms in range(0, 80, 4):
        given_up = late = ""
        for event in facts(
            told(
                GivenNotice(what="platform", attempt=1, after_ms=5_000, in_ms=25_000),
                GivenNotice(
                    what="platform",
                    attempt=1,
                    native_id="b",
                    phase=Phase.DURABLE,
                    after_ms=after_ms,
                    in_ms=4_000,
                ),
            )
        ):
            match event:
                case e.SaveAbandoned(generation_id=generation):
                    given_up = generation
                case e.CheckpointCommitted(generation_id=generation) if generation == given_up:
                    late = generation
                case e.RequeueRecorded(record=record) if late:
                    yield late, record.generation_id
                case _:
                    pass


def test_a_commit_that_outruns_the_end_of_its_save_is_what_the_requeue_record_names() -> None:
    found = list(committed_after_giving_up())
    assert found != []
    assert [(late, recorded) for late, recorded in found if late != recorded] == []


def test_a_node_whose_notice_nobody_can_record_is_gone_in_time() -> None:
    result = told(
        Happening(what="journal_full", attempt=1, after_ms=4_000, for_ms=60_000),
        GivenNotice(what="signal", attempt=1, after_ms=5_000, node=0),
        GivenNotice(what="signal", attempt=1, after_ms=5_000, node=1),
    )
    assert result.tally.faults["journal_full"] > 0
    assert result.took_ms < 5_000 + WORLD.grace_ms


def test_an_agent_that_is_let_in_by_nobody_gives_up() -> None:
    result = told(
        Happening(what="host_lost", attempt=1, phase=Phase.IDLE),
    )
    assert result.tally.faults["host_lost"] == 1
    assert WORLD.attach_s * 1_000 < result.took_ms < (WORLD.attach_s + 15) * 1_000
