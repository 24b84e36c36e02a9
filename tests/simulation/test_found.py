"""Stories that the simulator found to end badly once, told again in plans of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core.budget import Allowances
from drainfsm.core.rules import events_of
from drainfsm.core.state import Phase
from drainfsm_kit.simulator.plan import Event, GivenNotice, Happening, Plan, World
from drainfsm_kit.simulator.simulation import Result, simulate

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


SAVING = replace(WORLD, node_count=1, save_every=6)


def told(*events: Event, world: World = WORLD, seed: int = 1) -> Result:
    result = simulate(Plan(seed=seed, world=world, events=events))
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


@pytest.mark.parametrize("after_ms", [1, 60], ids=["before it came", "while it waits"])
def test_an_agent_that_is_let_in_by_nobody_gives_up(after_ms: int) -> None:
    result = told(
        Happening(what="host_lost", attempt=1, after_ms=after_ms),
    )
    assert result.tally.faults["host_lost"] == 1
    assert WORLD.attach_s * 1_000 < result.took_ms < (WORLD.attach_s + 15) * 1_000


def committed_steps(result: Result) -> list[int]:
    return [f.step for f in facts(result) if isinstance(f, e.CheckpointCommitted)]


def test_ranks_that_are_started_again_train_nothing_that_is_older_than_a_commit() -> None:
    """They went back to what the attempt had begun with, and a drain then saved that."""
    result = told(
        Happening(what="ranks_restarted", attempt=1, after_ms=8_000),
        GivenNotice(what="notify", attempt=1, after_ms=9_500, in_ms=25_000),
        world=SAVING,
    )
    assert result.tally.faults["ranks_restarted"] == 1
    restored = [f.step for f in facts(result) if isinstance(f, e.CheckpointRestored)]
    published = [f.step for f in facts(result) if isinstance(f, e.ManifestPublished)]
    committed = [step for step in committed_steps(result) if step not in published]
    assert committed
    assert restored == [committed[-1]]
    assert published > restored


def test_saves_that_pile_up_behind_a_stopped_agent_are_committed_in_their_order() -> None:
    """Whichever got its turn first was committed first, and the last one counted as the newest."""
    for seed in range(8):
        result = told(
            Happening(what="stopped", attempt=1, after_ms=5_000, for_ms=20_000),
            world=SAVING,
            seed=seed,
        )
        steps = committed_steps(result)
        assert len(steps) > 1
        assert steps == sorted(steps)


def test_the_last_commit_of_a_job_that_ends_by_itself_is_waited_for() -> None:
    """The store was given two seconds, and the next start trained the last steps again."""
    world = replace(SAVING, step_count=21)  # the last save is durable as the ranks leave
    result = told(
        Happening(what="store_hung", attempt=1, after_ms=7_000, for_ms=20_000), world=world
    )
    assert result.tally.faults["store_hung"] > 0
    recorded = [f.record.step for f in facts(result) if isinstance(f, e.RequeueRecorded)]
    assert recorded == committed_steps(result)[-1:] == [17]


PAUSED = replace(SAVING, save_every=0, step_count=1_000, end_ms=150_000)
OVER_ITS_END = (
    GivenNotice(what="platform", attempt=1, after_ms=6_000, hard=False, in_ms=60_000),
    Happening(what="stopped", attempt=1, after_ms=8_000, for_ms=70_000),
)
"""A suspended job, say, whose limit passes meanwhile. Slurm then moves the limit."""


def test_what_was_to_come_while_nothing_ran_leaves_time_for_a_save() -> None:
    """The agent killed its ranks as soon as it was awake."""
    result = told(*OVER_ITS_END, world=PAUSED)
    assert result.tally.faults["stopped"] == 1
    assert [f.reason for f in facts(result) if isinstance(f, e.SaveSkipped)] == []
    assert [f for f in facts(result) if isinstance(f, e.ManifestPublished)] != []


def test_what_is_called_off_after_a_pause_ends_nothing() -> None:
    called_off = GivenNotice(what="platform", attempt=1, after_ms=79_000, hard=False, withdraw=True)
    result = told(*OVER_ITS_END, called_off, world=PAUSED)
    assert [f for f in facts(result) if isinstance(f, e.DrainCancelled)] != []
    assert [f for f in facts(result) if isinstance(f, e.DrainDue)] == []
