"""The report of hand-built histories, number by number, and of every prefix of recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from drainfsm.cli.main import main
from drainfsm.core import events as e
from drainfsm.core import inputs as i
from drainfsm.core.budget import Sample
from drainfsm.core.codec import decode_lines, encode_lines
from drainfsm.core.explain import explain
from drainfsm.core.records import Record
from drainfsm.core.requeue import RefusedGeneration
from drainfsm.core.rules import events_of
from drainfsm.core.words import Verification
from drainfsm.testing.scenario import NOON_UNIX_MS, STORE, Scenario
from drainfsm.views.attempts import Ending
from drainfsm.views.history import by_attempt
from drainfsm.views.replay import AttemptLog
from drainfsm.views.report import Report, report_jobs
from drainfsm.views.report_text import report_text
from drainfsm.views.tally import Durations, Values

HISTORIES = sorted((Path(__file__).parents[1] / "replay" / "histories").glob("*.jsonl"))
SAMPLE = Sample(world_size=4, save_bytes=10_000_000, store=STORE, durable_ms=400, commit_ms=100)


def _committed(scenario: Scenario, *, step: int) -> e.CheckpointCommitted:
    epoch = scenario.state.attempt.epoch
    return e.CheckpointCommitted(
        generation_id=f"e{epoch:06d}-s{step:012d}-p",
        manifest_digest="sha256:00",
        slot=step,
        step=step,
        sample=SAMPLE,
    )


def _log(*scenarios: Scenario) -> tuple[AttemptLog, ...]:
    records = [
        replace(record, id=f"{record.epoch}-{record.id}")
        for scenario in scenarios
        for record in scenario.history
    ]
    return by_attempt(records)


def _lost() -> Scenario:
    """Healthy at 1 s, a commit at 10 s, the last sign of life at 12 s; no notice."""
    scenario = Scenario()
    scenario.wait(1_000).when(e.HealthyStepReached(step=0))
    scenario.wait(9_000).when(_committed(scenario, step=40))
    scenario.wait(2_000).when(
        e.SourceUnknown(
            source="aws", node=1, since_unix_ms=scenario.now_unix_ms - 500, detail="no route"
        )
    )
    return scenario


def _next(*, at_ms: int, lost_epoch: int | None = None, last_seen: int | None = None) -> Scenario:
    scenario = Scenario(epoch=2, form_world=False)
    started = scenario.history[0]
    events = started.events
    if lost_epoch is not None:
        events = (
            *events,
            e.AttemptLost(epoch=lost_epoch, reason="silent", last_seen_unix_ms=last_seen),
        )
    scenario.history[0] = replace(started, at_unix_ms=NOON_UNIX_MS + at_ms, events=events)
    scenario.now_unix_ms = NOON_UNIX_MS + at_ms
    scenario.when(i.FormWorld(world_size=4, save_bytes=1_000))
    return scenario


def test_a_loss_without_notice_is_told_with_its_age_its_delay_and_its_work() -> None:
    after = _next(at_ms=20_000, lost_epoch=1, last_seen=NOON_UNIX_MS + 13_000)
    after.wait(300).when(
        e.CheckpointRestored(
            generation_id="g",
            manifest_digest="d",
            step=40,
            restore_ms=250,
            verification=Verification.SIZES,
        )
    )
    after.wait(700).when(e.HealthyStepReached(step=41))
    made = report_jobs(_log(_lost(), after))
    first, second = made.jobs[0].attempts
    assert first.ending is Ending.LOST
    assert not first.noticed
    assert first.ended_unix_ms == NOON_UNIX_MS + 13_000
    assert first.checkpoint_age_ms == 3_000
    assert first.checkpoint_age_ms_max == 10_000
    assert first.work_lost_ms == 3_500  # the commit is of a step half a second before it
    assert first.steps_lost is None
    assert first.requeue_delay_ms == 7_000
    assert second.ending is Ending.OPEN
    assert (second.restored_step, second.restore_ms) == (40, 250)
    assert second.healthy_after_ms == 1_000
    totals = made.totals
    assert (totals.missed_notice.count, totals.missed_notice.of) == (1, 1)
    assert (totals.restart_healthy.count, totals.restart_healthy.of) == (1, 1)
    assert totals.checkpoint_age.max_ms == 3_000
    assert totals.save_durable.p50_ms == 400
    assert totals.sources[0].source == "aws"
    assert totals.sources[0].unknown_now
    assert totals == made.jobs[0].totals


def _refused(*, generation_id: str) -> e.RestoreRefused:
    return e.RestoreRefused(
        generation_id=generation_id,
        step=40,
        error="ManifestMismatchError",
        reason="data.bin has checksum x, not y",
        rank=3,
        node=1,
    )


def test_a_refused_restore_and_one_that_fell_back_are_told_and_counted() -> None:
    refused, other = _next(at_ms=20_000), _next(at_ms=30_000)
    refused.when(_refused(generation_id="newest"))
    refused.when(i.ReportExited(exit_code=1, nodes=()))
    other.when(
        e.CheckpointRestored(
            generation_id="older",
            manifest_digest="d",
            step=20,
            restore_ms=250,
            verification=Verification.CHECKSUMS,
            refused=(RefusedGeneration(generation_id="newest", reason="a flipped bit"),),
            saved_world_size=8,
            not_restored=("loader",),
        )
    )
    made = report_jobs(_log(refused))
    (attempt,) = made.jobs[0].attempts
    (told,) = attempt.restore_refused
    assert (attempt.ending, told.rank, told.node) == (Ending.FAILED, 3, 1)
    assert made.totals.restore_refused_count == 1
    text = " ".join("\n".join(report_text(made)).split())
    assert "refused newest (ManifestMismatchError: data.bin has checksum x, not y)" in text
    assert "restores refused 1 attempts ended so, 0 fell back" in text
    printed = json.loads(msgspec.json.encode(made))["jobs"][0]["attempts"][0]
    assert printed["restore_refused"][0]["reason"] == "data.bin has checksum x, not y"
    line, none = explain(refused.history)
    assert line.startswith("Generation newest (step 40) was not restored: rank 3 on node 1 ended")
    assert line.endswith("with ManifestMismatchError: data.bin has checksum x, not y")
    assert none == "No drain in these records."

    made = report_jobs(_log(other))
    (attempt,) = made.jobs[0].attempts
    assert (attempt.restored_generation_id, attempt.not_restored) == ("older", ("loader",))
    assert attempt.restored_in_place_of[0].generation_id == "newest"
    assert (made.totals.restore_refused_count, made.totals.restore_fallback_count) == (0, 1)
    text = " ".join("\n".join(report_text(made)).split())
    assert "instead of newest (a flipped bit); started anew: loader" in text
    assert explain(other.history)[:3] == [
        "Restored older (step 20).",
        "  instead of newest, which was refused: a flipped bit",
        "  saved by 8 rank(s); these parts started anew: loader",
    ]


def test_saves_that_fail_are_told_and_an_attempt_that_saves_nothing_is_not_healthy() -> None:
    after = _next(at_ms=20_000, lost_epoch=1)
    after.when(e.HealthyStepReached(step=41))
    for step in (42, 43):
        after.when(e.CheckpointFailed(generation_id=f"g{step}", step=step, reason="disk is full"))
    made = report_jobs(_log(_lost(), after))
    assert (made.totals.restart_healthy.count, made.totals.restart_healthy.of) == (0, 1)
    assert (made.totals.save_count, made.totals.failed_save_count) == (1, 2)
    text = " ".join("\n".join(report_text(made)).split())
    assert "first step after 0.000 s; NOTHING SAVED: all 2 saves failed, at last disk" in text
    assert "saves 1 committed, 2 failed; all failed in 1 attempts" in text

    after.when(_committed(after, step=44))
    made = report_jobs(_log(_lost(), after))
    assert made.totals.restart_healthy.count == 1
    text = " ".join("\n".join(report_text(made)).split())
    assert "healthy after 0.000 s; 2 of 3 saves failed, at last disk is full" in text


def test_the_numbers_of_a_save_that_had_no_room_are_in_its_event_and_explained() -> None:
    memory = e.MemoryShortage(host="a", needed_bytes=101, free_bytes=100)
    scenario = Scenario()
    scenario.when(e.CheckpointFailed(generation_id="g", step=3, reason="no room", memory=memory))
    scenario.saving()
    generation_id = scenario.generation_id
    scenario.when(i.ReportSaveFailed(generation_id=generation_id, reason="no room", memory=memory))
    (abandoned,) = [x for x in events_of(scenario.history) if isinstance(x, e.SaveAbandoned)]
    assert abandoned.memory == memory
    lines = explain(scenario.history)
    numbers = "  host memory on a: 101 bytes needed, 100 bytes free"
    assert lines[:2] == ["The periodic save of step 3 failed:", numbers]
    assert f"  {numbers}" in lines[2:]
    assert list(decode_lines(encode_lines(scenario.history))) == scenario.history


def test_what_is_restored_during_a_drain_is_explained_in_its_place() -> None:
    scenario = Scenario()
    scenario.given(scenario.notice(), _refused(generation_id="newest"))
    lines = explain(scenario.history)
    assert lines[0].startswith("Drain ")
    assert any(line.startswith("  Generation newest (step 40) was not") for line in lines)


def test_a_drain_that_saved_lost_nothing() -> None:
    scenario = Scenario()
    scenario.wait(1_000).when(e.HealthyStepReached(step=0))
    scenario.wait(9_000).saving()
    scenario.given(scenario.staged(), scenario.durable(), scenario.verified(), scenario.published())
    scenario.wait(500).when(i.ReportExited(exit_code=75, nodes=()))
    (attempt,) = report_jobs(_log(scenario)).jobs[0].attempts
    assert attempt.ending is Ending.DRAINED
    assert attempt.noticed
    assert (attempt.work_lost_ms, attempt.steps_lost) == (0, 0)
    (drain,) = attempt.drains
    assert drain.outcome == "committed"
    assert drain.window_ms == 60_000
    assert drain.remaining_ms == 59_500


def test_a_drain_that_skipped_its_save_lost_what_came_after_the_last_commit() -> None:
    scenario = Scenario()
    scenario.wait(1_000).when(e.HealthyStepReached(step=0))
    scenario.wait(4_000).when(_committed(scenario, step=40))
    scenario.given(
        scenario.wait(5_000).notice(in_ms=20_000), scenario.cordoned(), scenario.positions()
    )
    scenario.wait(19_000).when(i.Tick(missing=()))
    scenario.wait(2_000).when(i.ReportExited(exit_code=75, nodes=()))
    made = report_jobs(_log(scenario))
    (attempt,) = made.jobs[0].attempts
    assert attempt.drains[0].outcome == "skipped"
    assert attempt.steps_lost == 60  # the ranks were at 100, and 40 is committed
    assert attempt.work_lost_ms == 24_500
    assert made.totals.missed_notice.count == 0
    assert made.totals.deadline_missed_count == 1


def test_a_loss_in_the_middle_of_a_drain_is_no_missed_notice() -> None:
    scenario = Scenario().saving()
    made = report_jobs(_log(scenario, _next(at_ms=90_000, lost_epoch=1)))
    assert made.jobs[0].attempts[0].ending is Ending.LOST
    assert made.jobs[0].attempts[0].drains[0].outcome == "lost"
    assert (made.totals.missed_notice.count, made.totals.missed_notice.of) == (0, 1)


def test_a_loss_after_a_notice_that_was_taken_back_is_a_missed_notice() -> None:
    scenario = Scenario()
    notice = scenario.notice(hard=False, in_ms=3_600_000)
    withdrawn = i.WithdrawNotice(source="spot", native_id="n1", reason="")
    scenario.given(notice, withdrawn)
    made = report_jobs(_log(scenario, _next(at_ms=90_000, lost_epoch=1)))
    assert made.jobs[0].attempts[0].drains[0].outcome == "cancelled"
    assert (made.totals.missed_notice.count, made.totals.missed_notice.of) == (1, 1)


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        (i.ReportExited(exit_code=0, nodes=()), Ending.FINISHED),
        (i.ReportExited(exit_code=9, nodes=()), Ending.FAILED),
        (i.ReportFenced(by_epoch=2), Ending.SUPERSEDED),
        (i.ReportRanksLost(missing=(), node_lost=True, reason="gone"), Ending.LOST),
        (e.CheckpointRestored(generation_id="g", manifest_digest="d", step=1, restore_ms=1,
                          verification=Verification.SIZES), Ending.OPEN),
    ],
)  # fmt: skip
def test_only_loss_and_drain_count_as_loss_of_capacity(given: i.AnyInput, ending: Ending) -> None:
    scenario = Scenario()
    scenario.when(given)
    made = report_jobs(_log(scenario))
    assert made.totals.endings == {ending.value: 1}
    assert made.totals.missed_notice.of == (1 if ending is Ending.LOST else 0)


def test_attempts_that_left_no_record_are_counted_by_their_numbers() -> None:
    made = report_jobs(_log(_next(at_ms=0)))
    assert made.totals.attempt_count == 1
    assert made.totals.unlogged_count == 1
    assert report_jobs(_log(_next(at_ms=0)), epoch=2).totals.unlogged_count == 0


def test_percentiles_are_observed_values_by_nearest_rank() -> None:
    def durations(*values_ms: int | None) -> Durations:
        values = Values()
        for value_ms in values_ms:
            values.add(value_ms)
        return values.durations()

    found = durations(*range(1, 101), None)
    assert (found.count, found.p50_ms, found.p95_ms, found.p99_ms, found.max_ms) == (
        100, 50, 95, 99, 100,
    )  # fmt: skip
    assert durations(7).p50_ms == durations(7).p99_ms == 7
    assert durations().p50_ms is None
    assert durations(2**70, -(2**70)).max_ms == 2**63 - 1


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_every_prefix_of_a_recorded_history_has_a_report_that_adds_up(path: Path) -> None:
    records = list(decode_lines(path.read_bytes()))
    for count in range(1, len(records) + 1):
        made = report_jobs(by_attempt(records[:count]))
        totals = made.totals
        assert sum(totals.endings.values()) == totals.attempt_count
        assert totals.missed_notice.count <= totals.missed_notice.of <= totals.attempt_count
        assert totals.restart_healthy.count <= totals.restart_healthy.of
        assert all(len(line) <= 100 for line in report_text(made))
        encoded = msgspec.json.encode(made)
        assert msgspec.json.decode(encoded, type=Report) == made
        assert encoded == msgspec.json.encode(report_jobs(by_attempt(records[:count])))


def test_the_command_prints_text_or_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    after = _next(at_ms=20_000, lost_epoch=1)
    records: list[Record] = [r for log in _log(_lost(), after) for r in log.records]
    path = tmp_path / "job.jsonl"
    path.write_bytes(encode_lines(records))
    assert main(["report", "--file", str(path)]) == 0
    assert "lost without notice         1 of 1 (100.0%)" in capsys.readouterr().out
    assert main(["report", "--file", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["totals"]["endings"] == {"lost": 1, "open": 1}
    assert told["jobs"][0]["attempts"][0]["checkpoint_age_ms"] == 2_000
    assert main(["report", "--file", str(path), "--epoch", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["totals"]["attempt_count"] == 1
    assert told["jobs"][0]["attempts"][0]["requeue_delay_ms"] == 8_000
    assert main(["report", "--file", str(path), "--epoch", "9"]) == 2
