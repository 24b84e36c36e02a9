"""Replay of hand-built histories: states, times, and everything that does not count."""

from __future__ import annotations

import json

import msgspec
import pytest

from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.fold import Fold
from drainfsm.core.notice import Cause
from drainfsm.core.records import Record
from drainfsm.core.requeue import Capacity, RequeueRecord
from drainfsm.core.state import Phase
from drainfsm.core.words import CordonOutcome
from drainfsm.testing.scenario import NOON_UNIX_MS, Scenario
from drainfsm.views.replay import (
    AttemptLog,
    AttemptReplay,
    encode_line,
    replay_attempt,
    replay_job,
    select_drain,
)
from drainfsm.views.table import day_and_time, describe, table


def _replay(*records: Record, epoch: int = 1) -> AttemptReplay:
    return replay_attempt(AttemptLog(job_id="job", epoch=epoch, records=records))


def _record(*events: e.Event | e.UnknownFact, follows: int, **circumstances: object) -> Record:
    given: dict[str, object] = {
        "id": f"own-{follows}",
        "job_id": "job",
        "epoch": 1,
        "at_unix_ms": NOON_UNIX_MS,
        "follows": follows,
        "events": events,
    }
    return Record(**(given | circumstances))  # type: ignore[arg-type]


def _requeue() -> RequeueRecord:
    return RequeueRecord(
        job_id="job",
        epoch=1,
        cause=Cause.SPOT_INTERRUPTION,
        generation_id="g",
        manifest_digest="sha256:00",
        step=101,
        world_size=4,
        capacity=Capacity(node_count=2),
        recorded_unix_ms=NOON_UNIX_MS,
    )


def _whole_drain() -> Scenario:
    scenario = Scenario().saving(in_ms=60_000)
    for step in (scenario.staged, scenario.durable, scenario.verified, scenario.published):
        scenario.wait(1_000).when(step())
    scenario.when(e.RequeueRecorded(record=_requeue()))
    nodes = (e.NodeExit(node=0, exit_code=75), e.NodeExit(node=1, exit_code=75))
    scenario.wait(1_000).when(i.ReportExited(exit_code=75, nodes=nodes))
    return scenario


def test_each_event_has_the_state_after_it_and_the_time_that_was_left() -> None:
    scenario = _whole_drain()
    lines = _replay(*scenario.history).lines
    assert [(line.kind, line.phase.value, line.remaining_ms) for line in lines] == [
        ("attempt_started", "idle", None),
        ("world_formed", "idle", None),
        ("notice_received", "noticed", 60_000),
        ("node_cordoned", "noticed", 60_000),
        ("stop_step_agreed", "quiescing", 60_000),
        ("rank_quiesced", "quiescing", 60_000),
        ("rank_quiesced", "quiescing", 60_000),
        ("ranks_quiesced", "quiesced", 60_000),
        ("save_decided", "quiesced", 60_000),
        ("save_started", "saving", 60_000),
        ("bytes_staged", "staged", 59_000),
        ("durable", "durable", 58_000),
        ("entries_verified", "durable", 57_000),
        ("manifest_published", "published", 56_000),
        ("requeue_recorded", "published", 56_000),
        ("exited", "exited", 55_000),
    ]
    assert {line.outcome for line in lines} == {"applied"}


def test_events_of_one_decision_share_the_position_of_their_record() -> None:
    lines = _replay(*_whole_drain().history).lines
    shared = [line.position for line in lines if line.kind in ("ranks_quiesced", "save_started")]
    assert len(set(shared)) == 1


def test_the_final_state_is_that_of_the_fold() -> None:
    scenario = _whole_drain()
    final = _replay(*scenario.history).final
    state = scenario.state
    assert final.phase is state.phase is Phase.EXITED
    assert final.committed == state.attempt.committed
    assert final.exit_code == 75
    assert final.requeue == _requeue()
    assert final.drains == ("job/1/1",)
    assert final.record_count == len(scenario.history)
    assert final.event_counts == {"applied": 16, "skipped": 0, "refused": 0, "unknown": 0}


def test_every_prefix_replays_to_the_state_that_was_live_then() -> None:
    history = _whole_drain().history
    fold = Fold(job_id="job", epoch=1)
    for count, record in enumerate(history, start=1):
        fold.read(record)
        replay = _replay(*history[:count])
        assert replay.final.phase is replay.lines[-1].phase is fold.state.phase
        assert replay.counted == tuple(history[:count])


def test_a_shorter_deadline_counts_from_its_own_event_on() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=90_000))
    scenario.wait(10_000).when(scenario.notice(in_ms=20_000, native_id="n2"))
    left = [(line.kind, line.remaining_ms) for line in _replay(*scenario.history).lines[2:]]
    assert left == [
        ("notice_received", 90_000),
        ("notice_received", 80_000),
        ("deadline_shortened", 20_000),
    ]


def test_what_comes_after_the_deadline_has_negative_time() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=90_000))
    late = _record(
        e.SourceRecovered(source="aws", node=0), follows=3, at_unix_ms=NOON_UNIX_MS + 90_001
    )
    assert _replay(*scenario.history, late).lines[-1].remaining_ms == -1


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"id": "r2"}, "repeated: a record with this id stands before"),
        ({"follows": 2}, "stale: its writer had read 2 records, and it stands after 3"),
        ({"follows": 9}, "stale: its writer had read 9 records, and it stands after 3"),
        ({"epoch": 2}, "of another log: job job, epoch 2"),
        ({"job_id": "other"}, "of another log: job other, epoch 1"),
    ],
)
def test_a_skipped_record_is_shown_with_the_reason_and_changes_nothing(
    change: dict[str, object], note: str
) -> None:
    scenario = Scenario()
    scenario.when(scenario.notice())
    odd = _record(
        e.DrainCancelled(reason="not true"),
        e.SourceRecovered(source="aws", node=0),
        **({"follows": 3} | change),  # type: ignore[arg-type]
    )
    replay = _replay(*scenario.history, odd)
    for line in replay.lines[-2:]:
        assert (line.outcome, line.note, line.phase) == ("skipped", note, Phase.NOTICED)
    assert replay.final.event_counts["skipped"] == 2
    assert replay.counted == tuple(scenario.history)


def test_after_a_skipped_record_the_log_goes_on() -> None:
    scenario = Scenario()
    stale = _record(e.WorldFormed(world_size=1, save_bytes=0), follows=0)
    after = _record(e.HealthyStepReached(step=7), follows=2)
    replay = _replay(*scenario.history, stale, after)
    assert [line.outcome for line in replay.lines] == ["applied", "applied", "skipped", "applied"]
    assert replay.final.healthy_step == 7


def test_a_refused_event_takes_its_whole_record_with_it_and_says_why() -> None:
    scenario = Scenario()
    odd = _record(
        e.HealthyStepReached(step=7),
        e.Durable(generation_id="g", durable_bytes=1, file_count=1, durable_ms=1),
        e.HealthyStepReached(step=8),
        follows=2,
    )
    after = _record(e.HealthyStepReached(step=9), follows=3)
    replay = _replay(*scenario.history, odd, after)
    notes = [(line.outcome, line.note) for line in replay.lines[2:]]
    other = "not applied: another event of the same record is refused"
    assert notes == [
        ("refused", other),
        ("refused", "event durable is not allowed in state idle"),
        ("refused", other),
        ("applied", ""),
    ]
    assert replay.final.healthy_step == 9
    assert odd not in replay.counted


def test_an_event_of_an_unknown_kind_is_shown_and_the_others_of_its_record_count() -> None:
    scenario = Scenario()
    body = msgspec.Raw(b'{"kind":"moon_phase",\n "full":true}')
    record = _record(
        e.UnknownFact(kind="moon_phase", body=body), e.HealthyStepReached(step=7), follows=2
    )
    replay = _replay(*scenario.history, record)
    assert [line.outcome for line in replay.lines[2:]] == ["unknown", "applied"]
    assert replay.final.healthy_step == 7
    encoded = encode_line(replay.lines[2])
    assert encoded.count(b"\n") == 1
    assert json.loads(encoded)["event"] == {"kind": "moon_phase", "full": True}


def test_json_lines_carry_the_circumstances_and_the_whole_event() -> None:
    scenario = _whole_drain()
    replay = _replay(*scenario.history)
    line = json.loads(encode_line(replay.lines[2]))
    assert line["kind"] == "notice_received" == line["event"]["kind"]
    assert line["at_unix_ms"] == NOON_UNIX_MS
    assert (line["epoch"], line["position"]) == (1, 2)
    assert (line["phase"], line["remaining_ms"]) == ("noticed", 60_000)
    assert line["event"]["notice"]["native_id"] == "n1"
    final = json.loads(encode_line(replay.final))
    assert (final["kind"], final["phase"]) == ("final_state", "exited")


def test_an_attempt_that_a_later_one_found_lost_is_lost_in_the_view_of_the_job() -> None:
    first, second = Scenario(), Scenario(epoch=2)
    second.when(second.notice())
    lost = _record(e.AttemptLost(epoch=1, reason="silent"), follows=3, epoch=2)
    logs = [
        AttemptLog(job_id="job", epoch=2, records=(*second.history, lost)),
        AttemptLog(job_id="job", epoch=1, records=tuple(first.history)),
    ]
    one, two = replay_job(logs)
    assert (one.final.epoch, one.final.phase) == (1, Phase.LOST)
    assert one.final.lost == "silent (found by epoch 2)"
    assert one.lines[-1].phase is Phase.IDLE
    assert (two.final.epoch, two.final.phase, two.final.lost) == (2, Phase.NOTICED, "")


def test_a_loss_that_was_skipped_is_nobodys() -> None:
    first, second = Scenario(), Scenario(epoch=2)
    lost = _record(e.AttemptLost(epoch=1, reason="silent"), follows=0, epoch=2)
    logs = [
        AttemptLog(job_id="job", epoch=1, records=tuple(first.history)),
        AttemptLog(job_id="job", epoch=2, records=(*second.history, lost)),
    ]
    assert [replay.final.lost for replay in replay_job(logs)] == ["", ""]


def test_an_attempt_that_ended_keeps_its_end_although_a_later_one_calls_it_lost() -> None:
    ended, second = _whole_drain(), Scenario(epoch=2)
    lost = _record(e.AttemptLost(epoch=1, reason="silent"), follows=2, epoch=2)
    logs = [
        AttemptLog(job_id="job", epoch=1, records=tuple(ended.history)),
        AttemptLog(job_id="job", epoch=2, records=(*second.history, lost)),
    ]
    final = replay_job(logs)[0].final
    assert (final.phase, final.lost) == (Phase.EXITED, "silent (found by epoch 2)")


def test_one_of_two_drains_is_shown_alone() -> None:
    scenario = Scenario()
    scenario.when(scenario.notice(in_ms=3_600_000, hard=False))
    scenario.when(i.WithdrawNotice(source="spot", native_id="n1", reason="uncordoned"))
    scenario.when(e.HealthyStepReached(step=3))
    scenario.when(scenario.notice(in_ms=60_000, native_id="n2"))
    replay = _replay(*scenario.history)
    assert replay.final.drains == ("job/1/1", "job/1/2")
    kinds = {d: [x.kind for x in select_drain(replay, d).lines] for d in replay.final.drains}
    assert kinds == {
        "job/1/1": ["notice_received", "notice_withdrawn", "drain_cancelled"],
        "job/1/2": ["notice_received"],
    }


def test_the_table_fits_in_a_hundred_columns_and_hides_nothing() -> None:
    scenario = _whole_drain()
    odd = _record(e.DrainCancelled(reason="not true"), follows=0)
    lines = list(table(_replay(*scenario.history, odd)))
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for kind in ("attempt_started", "save_started", "[skipped] drain_cancelled"):
        assert kind in text
    assert "stale: its writer had read 0 records" in text
    assert "55.000 s  exited" in text
    assert "final state: exited; exit code 75" in text
    assert "17 events (1 skipped)" in text


def test_an_empty_log_has_a_final_state_too() -> None:
    replay = _replay()
    assert (replay.lines, replay.final.phase) == ((), Phase.IDLE)
    assert list(table(replay)) == ["job job, attempt 1", "final state: idle; 0 events"]


@pytest.mark.parametrize(
    ("unix_ms", "shown"),
    [
        (0, ("1970-01-01", "00:00:00.000")),
        (NOON_UNIX_MS + 7, ("2027-01-15", "08:00:00.007")),
        (10**18, ("", f"{10**18} ms")),
    ],
)
def test_times_are_utc_and_what_no_calendar_holds_stays_a_number(
    unix_ms: int, shown: tuple[str, str]
) -> None:
    assert day_and_time(unix_ms) == shown


def test_a_description_has_units_and_leaves_out_what_is_empty() -> None:
    event = e.NodeCordoned(
        outcome=CordonOutcome.FAILED,
        duration_ms=12,
        quiesce_by_unix_ms=NOON_UNIX_MS,
        budget=Scenario().saving().history[-1].events[-1].budget,  # type: ignore[union-attr]
    )
    assert describe(event) == (
        "outcome failed, duration 12 ms, quiesce_by 08:00:00.000, "
        "budget needs 9100 of 59500 ms: fits"
    )
