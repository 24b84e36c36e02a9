"""Histories that the Python runtime wrote are behaviours of the model; spoilt ones are not."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Allowances, Sample
from drainfsm.core.deadline import next_wake_unix_ms
from drainfsm.core.decide_stop import NOT_ATTACHED
from drainfsm.core.events import EVENT_TYPES, Fact
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.errors import InputRejectedError, NoticeRejectedError
from drainfsm.testing import strategies
from drainfsm.testing.scenario import STORE, Scenario
from drainfsm_kit.conformance import histories_in, refusals
from drainfsm_kit.model_steps import OUT_OF_SCOPE
from drainfsm_kit.running import RunningJob, running_job
from drainfsm_kit.simulator.simulation import simulate_seed

GOLDEN = Path(__file__).parents[1] / "replay" / "histories"
SEEDS = range(80)
SAMPLE = Sample(world_size=4, save_bytes=7, store=STORE, durable_ms=10, commit_ms=10)
RECORD = RequeueRecord(
    job_id="job",
    epoch=1,
    cause=Cause.UNKNOWN,
    generation_id=None,
    manifest_digest=None,
    step=None,
    world_size=4,
    capacity=Capacity(node_count=2),
    recorded_unix_ms=0,
)
Judge = Callable[[Sequence[Sequence[Record]]], dict[int, str]]


@pytest.fixture
def judge(models: Path, tmp_path: Path) -> Judge:
    def told(histories: Sequence[Sequence[Record]]) -> dict[int, str]:
        return refusals(histories, models=models, scratch=tmp_path)

    return told


@pytest.mark.tlc
def test_recorded_histories_are_behaviours_of_the_model(judge: Judge) -> None:
    histories = list(histories_in(GOLDEN))
    assert len(histories) >= 5
    assert judge(list(histories)) == {}


@pytest.mark.tlc
def test_a_real_run_is_a_behaviour_of_the_model(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    with running_job(tmp_path / "job") as job:
        _drain(job)
        history = job.records()
    assert any(isinstance(event, e.ManifestPublished) for r in history for event in r.events)
    assert judge([history]) == {}


def _without_ranks(records: Sequence[Record]) -> bool:
    """The model's ranks have attached: a job of which none has is not in its world."""
    events = [event for record in records for event in record.events]
    return any(isinstance(one, e.SaveSkipped) and one.reason == NOT_ATTACHED for one in events)


@pytest.mark.tlc
def test_histories_of_the_simulator_are_behaviours_of_the_model(judge: Judge) -> None:
    """Of the real coordinator and agents, in a world that misbehaves."""
    histories = [
        records
        for seed in SEEDS
        for _, records in simulate_seed(seed).history
        if records and not _without_ranks(records)
    ]
    kinds = {type(event) for history in histories for record in history for event in record.events}
    assert {e.ManifestPublished, e.SaveAbandoned, e.QuiesceTimedOut, e.AttemptFenced} <= kinds
    told = judge(histories)
    assert told == {}, _kinds_of(histories[min(told)])


def _drain(job: RunningJob) -> None:
    agent = job.start(job.toy())
    job.wait_for(e.HealthyStepReached)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 75


@pytest.mark.tlc
def test_histories_of_the_core_under_any_input_are_behaviours_of_the_model(judge: Judge) -> None:
    """With any numbers: allowances, samples, deadlines, steps, waits."""
    histories = [_history(random.Random(seed)) for seed in range(300)]
    kinds = {type(event) for history in histories for record in history for event in record.events}
    assert set(EVENT_TYPES) - set(OUT_OF_SCOPE) <= kinds
    told = judge(histories)
    assert told == {}, _kinds_of(histories[min(told)])


def _history(chance: random.Random) -> list[Record]:
    scenario = Scenario(allowances=_allowances(chance), samples=_samples(chance))
    for _ in range(chance.randint(3, 30)):
        good = strategies.good_input(scenario.state)
        if good is not None and chance.random() < 0.6:
            _try(scenario, good)
        else:
            _try(scenario, chance.choice(_inputs(scenario, chance)))
        _wait(scenario, chance.choice((0, 1, 1, 50, 1_000, 1_000, 20_000)))
    return scenario.history


def _allowances(chance: random.Random) -> Allowances:
    return Allowances(
        quiesce_ms=chance.choice((0, 500, 5_000, 20_000)),
        commit_ms=chance.choice((0, 3_000, 15_000)),
        exit_margin_ms=chance.choice((0, 5_000, 15_000)),
        clock_skew_ms=chance.choice((0, 500)),
        barrier_ms=chance.choice((0, 1_000)),
        schedule_slack_ms=chance.choice((0, 30_000)),
    )


def _samples(chance: random.Random) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            world_size=chance.choice((2, 4)),
            save_bytes=chance.choice((1_000_000, 10_000_000)),
            store=STORE,
            durable_ms=chance.randint(0, 9_000),
            commit_ms=chance.randint(0, 4_000),
            quiesce_ms=chance.choice((None, 100, 4_000)),
        )
        for _ in range(chance.randint(0, 3))
    )


def _inputs(scenario: Scenario, chance: random.Random) -> list[i.AnyInput]:
    """One of each kind: some make sense now, most do not."""
    state = scenario.state
    notice = scenario.notice(
        in_ms=chance.choice((None, -1_000, 2_000, 15_000, 40_000, 150_000, 4_000_000)),
        native_id=chance.choice("ab"),
        hard=chance.random() < 0.4,
        clock_skew_ms=chance.choice((0, 0, 3_000)),
    )
    periodic = e.CheckpointCommitted(
        generation_id=f"e1-s{chance.randint(1, 9)}-p",
        manifest_digest="d",
        slot=chance.randint(2, 99),
        step=7,
        sample=chance.choice(_samples(chance) or (SAMPLE,)),
    )
    reports: list[i.AnyInput] = [notice] * 4
    reports += [i.WithdrawNotice(source="spot", native_id=native) for native in "ab"] * 2
    reports += [scenario.cordoned(), scenario.positions(busy_for_ms=chance.choice((None, 60_000)))]
    step = 0 if state.stop is None else state.stop.step
    reports += [scenario.quiesced(chance.choice((0, 1)), step=step)]
    reports += [
        scenario.staged(),
        scenario.durable(),
        scenario.verified(count=chance.choice((8, 9))),
    ]
    reports += [scenario.published(), periodic, i.ReportExited(exit_code=0, nodes=())]
    lost = chance.random() < 0.5
    reports += [i.ReportRanksLost(missing=(), node_lost=lost, reason="died"), i.Tick()]
    reports += [i.ReportFenced(by_epoch=2), e.HealthyStepReached(step=1)]
    reports += [i.ReportSaveFailed(generation_id=scenario.generation_id, reason="disk full")]
    reports += [e.RequeueRecorded(record=RECORD), i.FormWorld(world_size=4, save_bytes=7)]
    return reports


def _try(scenario: Scenario, given_input: i.AnyInput) -> None:
    with contextlib.suppress(InputRejectedError, NoticeRejectedError):
        scenario.when(given_input)


def _wait(scenario: Scenario, elapsed_ms: int) -> None:
    """The shell ticks when the core asked for it."""
    until = scenario.now_unix_ms + elapsed_ms
    while (wake := next_wake_unix_ms(scenario.state)) is not None and wake <= until:
        scenario.now_unix_ms = max(scenario.now_unix_ms, wake)
        scenario.when(i.Tick())
    scenario.now_unix_ms = until


def _kinds_of(history: Sequence[Record]) -> list[list[str]]:
    return [[type(event).__name__ for event in record.events] for record in history]


# --- spoilt histories ---------------------------------------------------------------------------


def _whole() -> list[Record]:
    scenario = Scenario().saving()
    scenario.given(scenario.staged(), scenario.durable(), scenario.verified(), scenario.published())
    return scenario.history


def _at(history: list[Record], kind: type[Fact]) -> int:
    return next(
        n for n, r in enumerate(history) if any(isinstance(event, kind) for event in r.events)
    )


def _without(history: list[Record], kind: type[Fact]) -> list[Record]:
    kept = [r for n, r in enumerate(history) if n != _at(history, kind)]
    return [replace(record, follows=place) for place, record in enumerate(kept)]


def _later(history: list[Record], kind: type[Fact], by_ms: int) -> list[Record]:
    at = _at(history, kind)
    return [
        replace(r, at_unix_ms=r.at_unix_ms + by_ms) if n >= at else r for n, r in enumerate(history)
    ]


@pytest.mark.tlc
def test_spoilt_histories_are_refused_at_the_record_that_does_not_follow(judge: Judge) -> None:
    whole = _whole()
    judged = judge(
        [
            whole,
            _without(whole, e.EntriesVerified),
            _without(whole, e.NodeCordoned),
            _later(whole, e.SaveStarted, 55_000),
            _later(whole, e.Durable, 55_000),
            _without(whole, e.StopStepAgreed),
        ]
    )
    assert 0 not in judged
    assert "manifest_published is not allowed" in judged[1]
    assert "record 3: StopStepAgreed" in judged[2]
    assert "SaveStarted at levels (4,)" in judged[3] or "SaveStarted at levels (3,)" in judged[3]
    assert "Durable at levels" in judged[4]
    assert "rank_quiesced is not allowed" in judged[5]
